#include "checkpoint/folder_files.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/crc32.h"
#include "core/escaped.h"
#include "core/file.h"
#include "core/in_parallel.h"

namespace accelerate::detail {
namespace {

// What one thread reads at a time, and what of it is still in the cache when it is summed.
constexpr uint64_t kBlock = uint64_t{4} << 20, kPiece = uint64_t{256} << 10;

/// Null when there is no memory. Neither a vector nor a string: those would fill it first.
std::shared_ptr<char> memory_for(uint64_t size) {
  constexpr uint64_t kPage = 4096;
  return {static_cast<char*>(std::aligned_alloc(kPage, (size / kPage + 1) * kPage)), [](char* bytes) { std::free(bytes); }};
}

/// A file that is being read: into memory, or to be summed alone.
struct FileReading {
  std::string name;
  std::unique_ptr<InputFile> input;
  std::shared_ptr<char> bytes;
  std::vector<uint32_t> sums = std::vector<uint32_t>((input->size() + kBlock - 1) / kBlock);

  uint64_t block_size(size_t block) const { return std::min(kBlock, input->size() - block * kBlock); }

  void read_block(size_t block, bool summed) {
    std::vector<char> passing(bytes ? 0 : kPiece);
    const uint64_t end = block * kBlock + block_size(block);
    for (uint64_t offset = block * kBlock; offset < end; offset += kPiece) {
      const uint64_t size = std::min(kPiece, end - offset);
      char* const place = bytes ? bytes.get() + offset : passing.data();
      input->read(place, size, offset);
      if (summed) sums[block] = crc32(sums[block], place, size);
    }
  }

  uint32_t sum() const {
    uint32_t joined = 0;
    for (size_t i = 0; i < sums.size(); ++i) joined = combine_crc32(joined, sums[i], block_size(i));
    return joined;
  }
};

// A checkpoint may have more files than a process may open: one for each of a thousand ranks.
constexpr size_t kFilesAtOnce = 32;

/// The blocks of all files, partitioned among threads.
void read_all(std::vector<FileReading>& files, bool summed) {
  std::vector<std::pair<FileReading*, size_t>> blocks;
  for (auto& file : files) {
    for (size_t block = 0; block < file.sums.size(); ++block) blocks.emplace_back(&file, block);
  }
  in_parallel(blocks.size(), [&](size_t i) { blocks[i].first->read_block(blocks[i].second, summed); });
}

class KeptSource final : public ByteSource {
 public:
  KeptSource(std::string name, std::shared_ptr<char> bytes, uint64_t size, bool verified)
      : ByteSource(std::move(name)), bytes_(std::move(bytes)), verified_(verified) {
    size_ = size;
  }
  void read(void* bytes, uint64_t size, uint64_t offset) const override {
    require(offset, size);
    if (size > 0) std::memcpy(bytes, bytes_.get() + offset, size);
  }
  std::shared_ptr<char> memory() const override { return bytes_; }
  bool is_verified() const override { return verified_; }

 private:
  std::shared_ptr<char> bytes_;
  bool verified_;
};

}  // namespace

bool FolderFiles::contains(const std::string& name) const {
  if (kept_.contains(name)) return true;
  std::error_code problem;
  const bool there = std::filesystem::exists(folder_ / name, problem);
  if (problem) throw FileAccessError(fmt::format("Cannot access {}: {}.", (folder_ / name).string(), problem.message()));
  return there;
}

std::string FolderFiles::verify(const Manifest& manifest, const std::function<bool(const std::string&)>& keeps) {
  if (std::string defect = find_defect(folder_, manifest); !defect.empty()) return defect;
  const std::span<const FileRecord> records(manifest.files);
  for (size_t begin = 0; begin < records.size(); begin += kFilesAtOnce) {
    const auto some = records.subspan(begin, std::min(kFilesAtOnce, records.size() - begin));
    if (std::string defect = verify(some, keeps); !defect.empty()) return defect;
  }
  return "";
}

std::string FolderFiles::verify(std::span<const FileRecord> records, const std::function<bool(const std::string&)>& keeps) {
  std::vector<FileReading> files;
  try {
    for (const auto& record : records) {
      auto input = std::make_unique<InputFile>(folder_ / record.name);
      auto memory = keeps(record.name) ? memory_for(input->size()) : nullptr;
      files.push_back({record.name, std::move(input), std::move(memory)});
    }
    read_all(files, /*summed=*/true);
  } catch (const FileAccessError&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].input->size() != records[i].bytes || files[i].sum() != records[i].crc32)
      return fmt::format("{} is corrupt: its checksum does not match the manifest", escaped(records[i].name));
  }
  for (const auto& file : files) {
    if (file.bytes) kept_[file.name] = {file.bytes, file.input->size(), /*verified=*/true};
  }
  return "";
}

void FolderFiles::read(const std::vector<std::string>& names) {
  try {
    std::vector<FileReading> files;
    for (const auto& name : names) {
      if (kept_.contains(name) || !contains(name)) continue;
      auto input = std::make_unique<InputFile>(folder_ / name);
      auto memory = memory_for(input->size());
      if (memory) files.push_back({name, std::move(input), std::move(memory)});
    }
    read_all(files, /*summed=*/false);
    for (const auto& file : files) kept_[file.name] = {file.bytes, file.input->size()};
  } catch (const Error&) {  // the reader of that file will get the error
  }
}

char* FolderFiles::receive(const std::string& name, uint64_t size, bool verified) {
  auto memory = memory_for(size);
  if (!memory) throw std::bad_alloc();
  char* const bytes = memory.get();
  kept_[name] = {std::move(memory), size, verified};
  return bytes;
}

std::unique_ptr<ByteSource> FolderFiles::open(const std::string& name) const {
  const auto kept = kept_.find(name);
  if (kept == kept_.end()) return std::make_unique<InputFile>(folder_ / name);
  return std::make_unique<KeptSource>((folder_ / name).string(), kept->second.bytes, kept->second.size, kept->second.verified);
}

}  // namespace accelerate::detail
