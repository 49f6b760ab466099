#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/byte_sink.h"
#include "core/byte_source.h"
#include "formats/pickle_reader.h"
#include "formats/pickle_value.h"
#include "formats/zip_reader.h"
#include "formats/zip_writer.h"

namespace accelerate::detail {

/// Where the elements of tensors lie in a file.
struct TorchStorage {
  std::string key;
  uint64_t offset = 0, size = 0;  // bytes
};

/// A torch.save file, in the zip format or the legacy one: its plain values, and the offsets of its storages, which are not read.
/// The file is not trusted: every tensor lies inside its storage and every storage inside the file, or CheckpointError names the
/// file and the problem. The source must outlive this.
class TorchFile {
 public:
  explicit TorchFile(const ByteSource& source, const PickleRules& rules = {});

  const ByteSource& source() const { return source_; }
  const PickleNode& root() const { return *tree_.root; }
  /// The values, which outlive the file then. There is no root afterwards.
  PickleTree take_tree() { return std::move(tree_); }
  const std::vector<TorchStorage>& storages() const { return storages_; }
  /// By the key that tensors name. Every tensor of the tree has one, but those on the meta device.
  const TorchStorage& storage(const std::string& key) const;
  /// Fills `bytes` with the whole storage. CheckpointError when its checksum is wrong; the old format has none.
  void read(const TorchStorage& storage, void* bytes) const;
  /// For callers that have the bytes: throws as `read` does.
  void require_sound(const TorchStorage& storage, const void* bytes) const;
  /// For callers that read the bytes themselves, perhaps in chunks: throws unless `crc` matches the storage's, if it has one.
  void require_crc(const TorchStorage& storage, uint32_t crc) const;
  /// Reads a storage in pieces and throws when its checksum is wrong.
  void verify(const TorchStorage& storage) const;
  /// The elements of a tensor of the tree one after the other, whatever its strides. Its storage is read whole.
  std::string elements(const PickleTensor& tensor) const;
  /// Written by torch before 1.6, or asked for since.
  bool is_legacy() const { return zip_ == nullptr; }

 private:
  void read_archive(const PickleRules& rules);
  void read_legacy(const PickleRules& rules);
  PickleTree next_pickle(uint64_t& position, const PickleRules& rules) const;
  void check_tensors() const;

  const ByteSource& source_;
  std::unique_ptr<ZipReader> zip_;
  std::string folder_;
  PickleTree tree_;
  std::vector<TorchStorage> storages_;
  std::unordered_map<std::string, size_t> places_;  // of keys in storages_
};

/// Every tensor below `root`, each once, in the order of the tree.
std::vector<const PickleTensor*> tensors_below(const PickleNode& root);

/// What a tensor needs of its storage, in bytes; CheckpointError, naming `file`, when that is more than can be counted.
uint64_t tensor_extent(const PickleTensor& tensor, const std::string& file);

/// Do the elements lie one after the other, in order?
bool is_contiguous(const PickleTensor& tensor);

/// Writes a torch.save file (zip format) that torch.load(weights_only=True) accepts, one storage after the other. With the values
/// that Python has, and storages called "0", "1", ... in the order in which the tree names them, the bytes are Python's.
class TorchFileWriter {
 public:
  /// `archive` is the folder inside the zip: see torch_archive_name. Writes all that comes before the storages.
  TorchFileWriter(ByteSink& sink, const std::string& archive, const PickleNode& root);
  /// Begins the next storage; `write` then gives exactly `size` bytes in as many pieces as wanted.
  void begin(const std::string& key, uint64_t size);
  void write(const void* bytes, uint64_t size) { zip_.write(bytes, size); }
  /// Writes the end. Nothing may follow.
  void finish();

 private:
  ZipWriter zip_;
};

/// The folder that torch.save uses inside a file of that name: "optimizer" for "state/optimizer.bin".
std::string torch_archive_name(std::string_view path);

}  // namespace accelerate::detail
