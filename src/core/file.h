#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

/// Files as checkpoints need them: whole or not at all, and errors that name them.
namespace accelerate {

/// A file open for reading at any place. CheckpointError names it when it cannot be opened or ends too early.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }
  const std::string& name() const { return name_; }
  /// Fills `size` bytes from `offset` on, or throws.
  void read(void* bytes, uint64_t size, uint64_t offset) const;

 private:
  std::string name_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

/// A file being written beside its place. `commit` makes it durable and moves it there; without it, nothing is left.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Gives it the permissions of the file that it will replace, where there is one.
  void copy_permissions();
  void write(const void* bytes, uint64_t size);
  void commit();

 private:
  [[noreturn]] void fail(const char* doing) const;

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace accelerate
