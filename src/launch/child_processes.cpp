#include "launch/child_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace accelerate {
namespace {

// The parent of process `pid`, or 0 when there is no such process (any more).
pid_t parent_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // unlike reading by iterator, this does not throw when the process goes away meanwhile
  // "pid (name) state parent ...", and a name may hold anything.
  const auto name_end = text.rfind(')');
  int parent = 0;
  if (name_end == std::string::npos || std::sscanf(text.c_str() + name_end, ") %*c %d", &parent) != 1) return 0;
  return parent;
}

}  // namespace

std::set<pid_t> list_children(pid_t parent) {
  std::set<pid_t> children;
  siginfo_t ignored = {};
  // The usual case at the start of a launch, and cheaper than a look at every process of the machine.
  if (parent == ::getpid() && ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) != 0) return children;
  std::error_code problem;
  for (std::filesystem::directory_iterator entry("/proc", problem), end; !problem && entry != end; entry.increment(problem)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (parent_of(name) == parent) children.insert(std::atoi(name.c_str()));
  }
  return children;
}

}  // namespace accelerate
