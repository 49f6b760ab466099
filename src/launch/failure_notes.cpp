#include "launch/failure_notes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace accelerate::detail {
namespace {

constexpr char kMemoryName[] = "accelerate-failure-notes";

// In another namespace of processes, as in a container that inherits the variable, the path may be anybody's file.
bool is_our_memory(const std::string& path) {
  std::array<char, 128> target = {};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  if (length <= 0) return false;
  return std::string_view(target.data(), static_cast<size_t>(length)) == fmt::format("/memfd:{} (deleted)", kMemoryName);
}

}  // namespace

FailureNotes::FailureNotes() : memory_(::memfd_create(kMemoryName, MFD_CLOEXEC)) {}

std::string FailureNotes::place_of(size_t slot) const {
  return memory_ < 0 ? "" : fmt::format("/proc/{}/fd/{}:{}", ::getpid(), memory_, slot);
}

FailureNote FailureNotes::of(size_t slot) const {
  auto note = FailureNote::none;
  return ::pread(memory_, &note, 1, static_cast<off_t>(slot)) == 1 ? note : FailureNote::none;
}

void FailureNotes::clear() {
  if (memory_ >= 0 && ::ftruncate(memory_, 0) != 0) release();
}

void FailureNotes::release() {
  if (memory_ >= 0) ::close(memory_);
  memory_ = -1;
}

void leave_failure_note(FailureNote note) noexcept try {
  const char* place = std::getenv(kFailureNotesVariable);
  const char* colon = place != nullptr ? std::strrchr(place, ':') : nullptr;
  if (colon == nullptr) return;
  const std::string path(place, colon);
  if (!is_our_memory(path)) return;
  const int memory = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (memory < 0) return;
  // Without a note, the launcher blames the first rank to exit.
  [[maybe_unused]] const ssize_t written = ::pwrite(memory, &note, 1, static_cast<off_t>(std::strtoul(colon + 1, nullptr, 10)));
  ::close(memory);
} catch (const std::exception&) {
}

}  // namespace accelerate::detail
