#include "residency/weight_store.h"

#include <accelerate/core/error.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "core/file.h"
#include "residency/cached_pages.h"

namespace accelerate::detail {

/// What tells one content of a file from another. Not its inode, which may change when a file is opened to be written
/// (overlayfs).
struct FileVersion {
  off_t size;
  int64_t seconds, nanoseconds;

  bool operator==(const FileVersion&) const = default;
};

/// A descriptor that closes itself, and the reads and writes of it that are whole or an error.
class Descriptor {
 public:
  Descriptor(std::string path, int flags) : path_(std::move(path)), number_(open_regular_file(path_, flags).descriptor) {}
  ~Descriptor() { close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const std::string& path() const { return path_; }
  int number() const { return number_; }

  struct stat status() const {
    struct stat status {};
    if (fstat(number_, &status) != 0) fail("stat");
    return status;
  }
  FileVersion version() const {
    const struct stat now = status();
    return {now.st_size, now.st_mtim.tv_sec, now.st_mtim.tv_nsec};
  }
  void check_unchanged(const FileVersion& since) const {
    if (version() == since) return;
    throw CheckpointError(path_ + " has changed since its weights were dispatched. Load it again.");
  }

  /// Until it is closed: LOCK_SH of readers keeps LOCK_EX of a writer waiting. Where a file system has no locks, nobody waits.
  void lock(int kind) const {
    while (flock(number_, kind) != 0 && errno == EINTR) {
    }
  }

  void read(char* to, uint64_t size, uint64_t offset) const {
    while (size > 0) {
      const ssize_t got = pread(number_, to, size, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail("read");
      if (got == 0) throw CheckpointError(path_ + " was truncated after its weights were dispatched.");
      to += got, size -= static_cast<uint64_t>(got), offset += static_cast<uint64_t>(got);
    }
  }

  void write(const char* from, uint64_t size) const {
    for (uint64_t offset = 0; size > 0;) {
      const ssize_t put = pwrite(number_, from, size, static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) fail("write");
      from += put, size -= static_cast<uint64_t>(put), offset += static_cast<uint64_t>(put);
    }
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    throw CheckpointError(std::string("Cannot ") + doing + " " + path_ + ": " + std::strerror(errno) + ".");
  }

  std::string path_;
  int number_;
};

void WeightStore::write(const void*) { throw UsageError(where() + " is read-only."); }

class CheckpointFile {
 public:
  explicit CheckpointFile(const std::string& path)
      : descriptor_(path, O_RDONLY), version_(descriptor_.version()), cached_(descriptor_.number(), size()) {}

  uint64_t size() const { return static_cast<uint64_t>(version_.size); }
  const std::string& path() const { return descriptor_.path(); }

  void read(void* to, uint64_t size, uint64_t offset, bool repeatedly) const {
    descriptor_.check_unchanged(version_);
    // Pages are mapped when they are first copied, which takes as long as one read. To copy them past the caches is not for the
    // small buffers from which an accelerator fetches.
    const uint64_t copied = repeatedly ? cached_.copy(to, size, offset) : 0;
    descriptor_.read(static_cast<char*>(to) + copied, size - copied, offset + copied);
    descriptor_.check_unchanged(version_);  // nor while it was read
  }

 private:
  Descriptor descriptor_;
  FileVersion version_;
  mutable CachedPages cached_;
};

namespace {

class HomeInFile final : public WeightStore {
 public:
  HomeInFile(std::shared_ptr<const CheckpointFile> file, uint64_t offset, uint64_t size)
      : WeightStore(size), file_(std::move(file)), offset_(offset) {
    if (offset > file_->size() || size > file_->size() - offset) throw CheckpointError(file_->path() + " is truncated.");
  }

  std::string where() const override { return file_->path(); }
  void read(void* to, uint64_t size, uint64_t offset) const override { file_->read(to, size, offset_ + offset, false); }
  void read_repeatedly(void* to, uint64_t size, uint64_t offset) const override { file_->read(to, size, offset_ + offset, true); }

 private:
  std::shared_ptr<const CheckpointFile> file_;
  uint64_t offset_;
};

/// Opened for each read: a folder of offloaded weights has a file for each, more than a process may hold open.
class HomeOfFile final : public WeightStore {
 public:
  HomeOfFile(const std::string& path, uint64_t size, bool writable, const std::string& staged)
      : WeightStore(size),
        path_(std::filesystem::absolute(path)),
        writable_(writable),
        version_(opened(staged.empty() ? path_ : staged, O_RDONLY, LOCK_SH)->version()) {
    if (static_cast<uint64_t>(version_->size) != size) {
      throw CheckpointError(path_ + " has " + std::to_string(version_->size) + " bytes; " + std::to_string(size) +
                            " were expected.");
    }
  }

  std::string where() const override { return path_; }
  void read(void* to, uint64_t size, uint64_t offset) const override {
    const FileVersion expected = version();
    const auto file = opened(path_, O_RDONLY, LOCK_SH);
    file->check_unchanged(expected);
    file->read(static_cast<char*>(to), size, offset);
    file->check_unchanged(expected);  // by those who know nothing of locks
  }
  bool writable() const override { return writable_; }
  void write(const void* from) override {
    const std::lock_guard lock(mutex_);
    const auto file = opened(path_, O_WRONLY, LOCK_EX);
    if (version_) file->check_unchanged(*version_);  // else it is another's by now
    version_.reset();
    file->write(static_cast<const char*>(from), size());  // in place: a new file takes five to ten times as long
    version_ = file->version();
  }

 private:
  static std::unique_ptr<const Descriptor> opened(const std::string& path, int flags, int lock) {
    auto file = std::make_unique<const Descriptor>(path, flags);
    file->lock(lock);
    return file;
  }
  FileVersion version() const {
    const std::lock_guard lock(mutex_);
    if (!version_) throw CheckpointError(path_ + " could not be written completely, and its weight is lost. Load it again.");
    return *version_;
  }

  std::string path_;
  bool writable_;
  mutable std::mutex mutex_;
  std::optional<FileVersion> version_;  // none where it could not be written whole
};

}  // namespace

std::shared_ptr<const CheckpointFile> open_checkpoint_file(const std::string& path) {
  return std::make_shared<const CheckpointFile>(path);
}

std::shared_ptr<WeightStore> store_in_file(std::shared_ptr<const CheckpointFile> file, uint64_t offset, uint64_t size) {
  return std::make_shared<HomeInFile>(std::move(file), offset, size);
}

std::shared_ptr<WeightStore> store_of_file(const std::string& path, uint64_t size, bool writable, const std::string& staged) {
  return std::make_shared<HomeOfFile>(path, size, writable, staged);
}

}  // namespace accelerate::detail
