#include "distributed/peer_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <sstream>

namespace accelerate {
namespace {

struct ProcessFacts {
  char state = 'X';
  uint64_t flags = 0;
  uint64_t threads = 0;
  uint64_t started = 0;
};

/// A small file of /proc. Not by a stream, which throws when the process ends while it is read.
std::string text_of(const std::string& path) {
  char text[1024];
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return "";
  const ssize_t length = ::read(file, text, sizeof(text));
  ::close(file);
  return {text, static_cast<size_t>(std::max<ssize_t>(0, length))};
}

/// From /proc/<pid>/stat, whose second field is a name that may hold anything; the others are counted from the third.
ProcessFacts facts_of(int64_t pid) {
  const std::string text = text_of("/proc/" + std::to_string(pid) + "/stat");
  ProcessFacts facts;
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) return facts;
  std::istringstream fields(text.substr(name_end + 1));
  fields >> facts.state;
  uint64_t field = 0;
  for (int number = 4; number <= 22 && fields; ++number) {
    std::string word;
    fields >> word;
    field = std::strtoull(word.c_str(), nullptr, 10);
    if (number == 9) facts.flags = field;
    if (number == 20) facts.threads = field;
  }
  facts.started = field;
  return facts;
}

}  // namespace

ProcessCard ProcessCard::of_this_process(const std::string& machine, int descriptor) {
  char processes[64] = {};
  if (::readlink("/proc/self/ns/pid", processes, sizeof(processes) - 1) < 0) processes[0] = '\0';
  const std::string kernel = text_of("/proc/sys/kernel/random/boot_id");
  ProcessCard card;
  card.machine = std::hash<std::string>()(kernel + "/" + processes + "/" + machine);
  card.pid = ::getpid();
  card.started = facts_of(card.pid).started;
  card.descriptor = descriptor;
  return card;
}

Presence presence_of(const ProcessCard& card) {
  constexpr uint64_t kExiting = 4;  // PF_EXITING: it is dead, and the kernel is still clearing up
  const ProcessFacts facts = facts_of(card.pid);
  if (facts.state == 'X' || facts.state == 'Z' || facts.started != card.started || (facts.flags & kExiting))
    return Presence::gone;
  return facts.state == 'T' || facts.state == 't' ? Presence::stopped : Presence::running;
}

bool has_ended(const ProcessCard& card) {
  const ProcessFacts facts = facts_of(card.pid);
  return facts.state == 'X' || facts.started != card.started || (facts.state == 'Z' && facts.threads <= 1);
}

}  // namespace accelerate
