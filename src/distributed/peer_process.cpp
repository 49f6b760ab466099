#include "distributed/peer_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <optional>
#include <sstream>

namespace accelerate::detail {
namespace {

struct ProcessFacts {
  char state = 'X';
  uint64_t threads = 0;
  uint64_t started = 0;
};

/// A small file of /proc, or nothing. Not by a stream, which throws when the process ends while it is read.
std::optional<std::string> text_of(const std::string& path) {
  char text[1024];
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const ssize_t length = ::read(file, text, sizeof(text));
  const int problem = errno;
  ::close(file);
  errno = problem;
  return length < 0 ? std::nullopt : std::optional(std::string(text, static_cast<size_t>(length)));
}

/// From /proc/<pid>/stat, whose second field is a name that may hold anything; the others are counted from the third. State X
/// when there is no such process; nothing when that cannot be told.
std::optional<ProcessFacts> facts_of(int64_t pid) {
  const auto text = text_of("/proc/" + std::to_string(pid) + "/stat");
  ProcessFacts facts;
  if (!text) {
    const bool no_such = errno == ENOENT || errno == ESRCH;
    return no_such && text_of("/proc/self/stat") ? std::optional(facts) : std::nullopt;
  }
  std::istringstream fields(text->substr(text->rfind(')') + 1));
  fields >> facts.state;
  for (int number = 4; number <= 22; ++number) {
    std::string word;
    fields >> word;
    const uint64_t field = std::strtoull(word.c_str(), nullptr, 10);
    if (number == 20) facts.threads = field;
    if (number == 22) facts.started = field;
  }
  return facts;
}

}  // namespace

ProcessCard ProcessCard::of_this_process(const std::string& machine, int descriptor) {
  char processes[64] = {};
  if (::readlink("/proc/self/ns/pid", processes, sizeof(processes) - 1) < 0) processes[0] = '\0';
  const std::string kernel = text_of("/proc/sys/kernel/random/boot_id").value_or("");
  ProcessCard card;
  card.machine = std::hash<std::string>()(kernel + "/" + processes + "/" + machine);
  card.pid = ::getpid();
  card.started = facts_of(card.pid).value_or(ProcessFacts()).started;
  card.descriptor = descriptor;
  return card;
}

Presence presence_of(const ProcessCard& card) {
  const auto facts = facts_of(card.pid);
  if (!facts) return Presence::unknown;
  // A process whose first thread has ended is a zombie by its state, and lives as long as another thread does.
  if (facts->state == 'X' || facts->started != card.started || (facts->state == 'Z' && facts->threads <= 1))
    return Presence::gone;
  return facts->state == 'T' || facts->state == 't' ? Presence::stopped : Presence::running;
}

}  // namespace accelerate::detail
