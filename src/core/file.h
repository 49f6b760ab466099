#pragma once

#include <accelerate/core/error.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/byte_sink.h"
#include "core/byte_source.h"

/// Files for checkpoints: atomic writes, and errors that name the file.
namespace accelerate::detail {

/// A system error on access to a file (no descriptors, no permission, an I/O error). It says nothing about the file's content.
class FileAccessError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A descriptor, and the size of its file when it was opened.
struct RegularFile {
  int descriptor = -1;
  uint64_t size = 0;
};

/// Opens the regular file at `path` with `flags` and O_CLOEXEC. CheckpointError for any other kind of file: a FIFO would block
/// until another process writes to it, and a device has no end.
RegularFile open_regular_file(const std::filesystem::path& path, int flags);

/// "a FIFO" or the like, for a mode from `stat`.
std::string file_kind(unsigned mode);

/// A regular file open for reading at any place. CheckpointError names it when it cannot be opened or ends too early.
class InputFile final : public ByteSource {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile() override;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void read(void* bytes, uint64_t size, uint64_t offset) const override;
  /// Makes writes of others to it durable (fsync).
  void settle() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A file that is written under a temporary name. `commit` fsyncs and renames it; without a commit, nothing is left.
class OutputFile final : public ByteSink {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile() override;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Gives it the permissions of the file that it will replace, if there is one.
  void copy_permissions();
  void write(const void* bytes, uint64_t size) override;
  /// Fsyncs the temporary file. Nothing can be written any more.
  void settle();
  const std::filesystem::path& path() const { return path_; }
  /// The temporary name until the rename.
  const std::filesystem::path& staged() const { return temporary_; }
  /// Fsyncs and renames it. The rename is not durable before its folder is fsynced.
  void place();
  /// The same, and fsyncs the folder.
  void commit();

 private:
  void begin_flush();
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  uint64_t written_ = 0, flushed_ = 0;
};

}  // namespace accelerate::detail
