#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "core/byte_source.h"

namespace accelerate::detail {

/// The files of a folder, read by several threads and kept in memory for those who take them apart: each is read once, also when
/// it is first compared with what was saved.
class FolderFiles {
 public:
  explicit FolderFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  /// FileAccessError when it cannot be known.
  bool contains(const std::string& name) const;

  /// Compares all files with the manifest. Returns what is wrong with one: it is missing, of another size, or its content is not
  /// what was saved; empty when nothing is. Those that `keeps` says yes to, by their name, stay in memory. FileAccessError when
  /// the system does not let us read one. Few files are open at a time.
  std::string verify(const Manifest& manifest, const std::function<bool(const std::string&)>& keeps);
  /// Reads those of `names` that are there and not kept yet. One that cannot be read, or that there is no memory for, is left
  /// to `open`.
  void read(const std::vector<std::string>& names);
  /// Memory for a file that another rank has read, which is kept. std::bad_alloc.
  char* receive(const std::string& name, uint64_t size, bool verified);
  /// A file that was kept, or else is opened now. CheckpointError when it cannot be.
  std::unique_ptr<ByteSource> open(const std::string& name) const;

 private:
  std::string verify(std::span<const FileRecord> records, const std::function<bool(const std::string&)>& keeps);

  struct Kept {
    std::shared_ptr<char> bytes;
    uint64_t size = 0;
    bool verified = false;
  };

  std::filesystem::path folder_;
  std::map<std::string, Kept> kept_;
};

}  // namespace accelerate::detail
