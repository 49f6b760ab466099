#pragma once

#include <accelerate/core/error.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/byte_sink.h"
#include "core/byte_source.h"

/// Files as checkpoints need them: whole or not at all, and errors that name them.
namespace accelerate::detail {

/// The system did not let us at a file: no descriptors, no permission, an error of the disk. It says nothing about the file.
class FileAccessError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// A descriptor, and the size of its file when it was opened.
struct RegularFile {
  int descriptor = -1;
  uint64_t size = 0;
};

/// Opens the regular file at `path` with `flags` and O_CLOEXEC. CheckpointError tells what else is there: a FIFO would keep the
/// process until somebody writes to it, and a device has no end.
RegularFile open_regular_file(const std::filesystem::path& path, int flags);

/// "a FIFO" or the like, of a mode that `stat` tells.
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
  /// Makes what somebody else has written to it durable.
  void settle() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A file being written beside its place. `commit` makes it durable and moves it there; without it, nothing is left.
class OutputFile final : public ByteSink {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile() override;
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Gives it the permissions of the file that it will replace, where there is one.
  void copy_permissions();
  void write(const void* bytes, uint64_t size) override;
  /// Makes what was written durable, beside its place. Nothing can be written any more.
  void settle();
  const std::filesystem::path& path() const { return path_; }
  /// Where it lies until it is moved to its place.
  const std::filesystem::path& staged() const { return temporary_; }
  /// Makes it durable and moves it to its place. The move is not durable before its folder is.
  void place();
  /// The same with the folder.
  void commit();

 private:
  void begin_flush();
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  uint64_t written_ = 0, flushed_ = 0;
};

}  // namespace accelerate::detail
