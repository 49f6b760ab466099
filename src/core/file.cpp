#include "core/file.h"

#include <accelerate/core/error.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

std::string reason() { return std::strerror(errno); }

[[noreturn]] void fail_to(const char* doing, const std::string& name) {
  const std::string text = std::string("Cannot ") + doing + " " + name + ": " + reason() + ".";
  if (errno == ENOENT || errno == ENOTDIR) throw CheckpointError(text);
  throw FileAccessError(text);
}

/// A rename is durable once its folder is fsynced.
void sync_folder(const std::filesystem::path& file) {
  const auto folder = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  fsync(descriptor);
  close(descriptor);
}

[[noreturn]] void cannot_open(const std::filesystem::path& path) { fail_to("open", escaped(path.string())); }

[[noreturn]] void not_regular(const std::filesystem::path& path, const struct stat& status) {
  throw CheckpointError(escaped(path.string()) + " is " + file_kind(status.st_mode) + ", not a regular file.");
}

}  // namespace

std::string file_kind(unsigned mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

RegularFile open_regular_file(const std::filesystem::path& path, int flags) {
  struct stat status {};
  // A device or a FIFO is never opened, which can have side effects. O_NONBLOCK is for one that replaces the file meanwhile.
  if (stat(path.c_str(), &status) != 0) cannot_open(path);
  if (!S_ISREG(status.st_mode)) not_regular(path, status);
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) cannot_open(path);
  const bool known = fstat(descriptor, &status) == 0;
  if (known && S_ISREG(status.st_mode)) return {descriptor, static_cast<uint64_t>(status.st_size)};
  const int problem = errno;
  close(descriptor);
  if (known) not_regular(path, status);
  errno = problem;
  cannot_open(path);
}

InputFile::InputFile(const std::filesystem::path& path) : ByteSource(path.string()), path_(path) {
  const RegularFile opened = open_regular_file(path, O_RDONLY);
  descriptor_ = opened.descriptor;
  size_ = opened.size;
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(void* bytes, uint64_t size, uint64_t offset) const {
  auto* target = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = pread(descriptor_, target, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_to("read", name_);
    if (got == 0) throw CheckpointError(name_ + " was truncated while it was being read: is another process writing to it?");
    target += got;
    size -= static_cast<uint64_t>(got);
    offset += static_cast<uint64_t>(got);
  }
}

void InputFile::settle() const {
  if (fsync(descriptor_) != 0) fail_to("write", name_);
}

OutputFile::OutputFile(const std::filesystem::path& path) : path_(path) {
  // Not mkstemp: its files are readable by their owner alone, and what is saved follows the umask like any other file.
  static std::atomic<unsigned> count = 0;
  do {
    temporary_ = path.string() + "." + std::to_string(getpid()) + "-" + std::to_string(count++) + ".tmp";
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) throw CheckpointError("Cannot write " + path_.string() + ": " + reason() + ".");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void OutputFile::fail(const char* doing) const {
  throw CheckpointError(std::string("Cannot ") + doing + " " + path_.string() + ": " + reason() + ".");
}

void OutputFile::copy_permissions() {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0) return;
  if (fchmod(descriptor_, status.st_mode & 07777) != 0) fail("write");
}

void OutputFile::write(const void* bytes, uint64_t size) {
  const auto* source = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t put = ::write(descriptor_, source, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail("write");
    source += put;
    size -= static_cast<uint64_t>(put);
    written_ += static_cast<uint64_t>(put);
  }
  begin_flush();
}

void OutputFile::begin_flush() {
  constexpr uint64_t kFlushBlock = uint64_t{8} << 20;
  if (written_ - flushed_ < kFlushBlock) return;
  // Only a hint, so errors are left to fsync: the disk writes while the next bytes are copied.
  sync_file_range(descriptor_, static_cast<off_t>(flushed_), static_cast<off_t>(written_ - flushed_), SYNC_FILE_RANGE_WRITE);
  flushed_ = written_;
}

void OutputFile::settle() {
  if (fsync(descriptor_) != 0) fail("write");
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) fail("write");
}

void OutputFile::place() {
  if (descriptor_ >= 0) settle();
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace");
  temporary_.clear();
}

void OutputFile::commit() {
  place();
  sync_folder(path_);
}

}  // namespace accelerate::detail
