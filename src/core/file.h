#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/byte_sink.h"
#include "core/byte_source.h"

/// Files as checkpoints need them: whole or not at all, and errors that name them.
namespace accelerate {

/// A file open for reading at any place. CheckpointError names it when it cannot be opened or ends too early.
class InputFile final : public ByteSource {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile() override;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  void read(void* bytes, uint64_t size, uint64_t offset) const override;

 private:
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

}  // namespace accelerate
