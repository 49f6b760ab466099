#include "hosts/child_processes.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace accelerate::detail {
namespace {

// The parent of process `pid`, or 0 when there is no such process (any more).
pid_t parent_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  std::getline(file, text, '\0');  // unlike reading by iterator, this does not throw when the process exits meanwhile
  // "pid (name) state parent ...", and a name may hold anything.
  const auto name_end = text.rfind(')');
  int parent = 0;
  if (name_end == std::string::npos || std::sscanf(text.c_str() + name_end, ") %*c %d", &parent) != 1) return 0;
  return parent;
}

// The kernel's own list of the children of each thread of `parent`; nothing if the kernel is built without these files.
// Fast, and complete even while children fork and exit: a new child is appended to the list.
std::optional<std::set<pid_t>> read_children(pid_t parent) {
  std::set<pid_t> children;
  std::error_code problem;
  const std::string threads = "/proc/" + std::to_string(parent) + "/task";
  for (std::filesystem::directory_iterator entry(threads, problem), end; !problem && entry != end; entry.increment(problem)) {
    std::ifstream file(entry->path() / "children");
    if (!file) return std::nullopt;
    for (pid_t child = 0; file >> child;) children.insert(child);
  }
  return children;
}

}  // namespace

std::set<pid_t> list_children(pid_t parent) {
  if (auto listed = read_children(parent)) return *listed;
  std::set<pid_t> children;
  siginfo_t ignored = {};
  // The usual case at the start of a launch, and cheaper than scanning all of /proc.
  if (parent == ::getpid() && ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) != 0) return children;
  std::error_code problem;
  for (std::filesystem::directory_iterator entry("/proc", problem), end; !problem && entry != end; entry.increment(problem)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (parent_of(name) == parent) children.insert(std::atoi(name.c_str()));
  }
  return children;
}

}  // namespace accelerate::detail
