#include "checkpoint_files/distributed_checkpoint.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/crc32.h"
#include "core/escaped.h"
#include "core/file.h"
#include "formats/torch_file.h"

namespace accelerate::detail {
namespace {

constexpr uint64_t kScatteredPiece = 1 << 20;

/// Calls `read`; what goes wrong is said to concern `name`. Errors of the system stay what they are.
template <typename Read>
void reading(const std::string& name, Read read) {
  const auto message = [&](const Error& error) {
    return "Cannot read " + escaped(name, kLongestQuote) + " of a distributed checkpoint: " + error.what();
  };
  try {
    read();
  } catch (const FileAccessError& error) {
    throw FileAccessError(message(error));
  } catch (const CheckpointError& error) {
    throw CheckpointError(message(error));
  }
}

DistributedMetadata metadata_in(const std::filesystem::path& folder) {
  const InputFile source(folder / kDistributedMetadataName);
  return read_distributed_metadata(source.text(0, source.size()), source.name());
}

/// The elements of a chunk in its file, from one on.
class ChunkElements {
 public:
  ChunkElements(const DistributedTensor& tensor, const DistributedChunk& chunk, const TorchFile& file)
      : file_(file), tensor_(file.root().tensor()), storage_(file.storage(tensor_.storage)) {
    if (tensor_.dtype != tensor.dtype || tensor_.sizes != chunk.box.sizes || tensor_.conjugated || tensor_.negative)
      throw CheckpointError("the chunk in " + file.source().name() + " does not match the .metadata file.");
    if (!is_contiguous(tensor_)) gathered_ = file.elements(tensor_);
  }

  /// `offset` and `size` in bytes.
  void read(void* bytes, uint64_t size, uint64_t offset) {
    if (!gathered_.empty()) {
      std::memcpy(bytes, gathered_.data() + offset, size);
      return;
    }
    const auto first = static_cast<uint64_t>(tensor_.offset * tensor_.dtype->bytes);
    file_.source().read(bytes, size, storage_.offset + first + offset);
    if (offset != summed_ || first != 0) return;
    crc_ = crc32(crc_, bytes, size);
    summed_ += size;
    if (summed_ == storage_.size) file_.require_crc(storage_, crc_);
  }

 private:
  const TorchFile& file_;
  const PickleTensor& tensor_;
  const TorchStorage& storage_;
  std::string gathered_;
  uint64_t summed_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace

DistributedCheckpoint::DistributedCheckpoint(std::filesystem::path folder)
    : folder_(std::move(folder)), metadata_(metadata_in(folder_)) {
  for (size_t i = 0; i < tensors().size(); ++i) tensor_places_.emplace(tensors()[i].name, i);
  for (size_t i = 0; i < values().size(); ++i) value_places_.emplace(values()[i].name, i);
  require_files();
}

/// Every file is there, and long enough; so no tensor has more bytes than the files together.
void DistributedCheckpoint::require_files() const {
  std::map<std::string, uint64_t> sizes;
  const auto require = [&](const StoredPlace& place) {
    auto known = sizes.find(place.file);
    if (known == sizes.end()) known = sizes.emplace(place.file, InputFile(folder_ / place.file).size()).first;
    if (place.offset <= known->second && place.length <= known->second - place.offset) return;
    throw CheckpointError((folder_ / place.file).string() + " is truncated: it has " + std::to_string(known->second) +
                          " bytes, but " + std::to_string(place.length) + " are expected at offset " +
                          std::to_string(place.offset) + ".");
  };
  for (const auto& tensor : tensors()) {
    reading(tensor.name, [&] {
      for (const auto& chunk : tensor.chunks) require(chunk.place);
    });
  }
  for (const auto& value : values()) reading(value.name, [&] { require(value.place); });
  uint64_t available = 0;
  for (const auto& [file, size] : sizes) available += size;
  for (const auto& tensor : tensors()) {
    if (tensor.bytes() > available)
      throw CheckpointError(escaped(tensor.name, kLongestQuote) + " in " + folder_.string() +
                            " has more bytes than all files together.");
  }
}

const DistributedTensor* DistributedCheckpoint::find_tensor(std::string_view name) const {
  const auto found = tensor_places_.find(name);
  return found == tensor_places_.end() ? nullptr : &tensors()[found->second];
}

const DistributedValue* DistributedCheckpoint::find_value(std::string_view name) const {
  const auto found = value_places_.find(name);
  return found == value_places_.end() ? nullptr : &values()[found->second];
}

void DistributedCheckpoint::read(const DistributedTensor& tensor, uint64_t begin, uint64_t end, void* bytes) const {
  if (begin > end || end > tensor.elements()) {
    throw UsageError("The elements " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                     escaped(tensor.name, kLongestQuote) + " are to be read, which has " + std::to_string(tensor.elements()) +
                     ".");
  }
  if (begin == end) return;
  reading(tensor.name, [&] {
    for (const auto& chunk : tensor.chunks) read_chunk(tensor, chunk, begin, end, static_cast<char*>(bytes));
  });
}

/// Reads what the chunk has of [begin, end), which is one range of its own elements, and puts it where it belongs.
void DistributedCheckpoint::read_chunk(const DistributedTensor& tensor, const DistributedChunk& chunk, uint64_t begin,
                                       uint64_t end, char* bytes) const {
  uint64_t next = elements_before(tensor.shape, chunk.box, begin);
  const uint64_t last = elements_before(tensor.shape, chunk.box, end);
  if (next == last) return;
  const InputFile source(folder_ / chunk.place.file);
  const SectionSource section(source, chunk.place.offset, chunk.place.length);
  const TorchFile file(section);
  ChunkElements elements(tensor, chunk, file);
  const auto element = static_cast<uint64_t>(tensor.dtype->bytes);
  const uint64_t run = run_length(tensor.shape, chunk.box);
  if (next / run == (last - 1) / run) {
    return elements.read(bytes + (place_in_tensor(tensor.shape, chunk.box, next) - begin) * element, (last - next) * element,
                         next * element);
  }
  std::string piece(std::min((last - next) * element, kScatteredPiece), '\0');
  while (next < last) {
    const uint64_t count = std::min(last - next, piece.size() / element);
    elements.read(piece.data(), count * element, next * element);
    for (uint64_t done = 0; done < count;) {
      const uint64_t size = std::min(count - done, run - (next + done) % run);
      std::memcpy(bytes + (place_in_tensor(tensor.shape, chunk.box, next + done) - begin) * element,
                  piece.data() + done * element, size * element);
      done += size;
    }
    next += count;
  }
}

PickleTree DistributedCheckpoint::read(const DistributedValue& value) const {
  PickleTree tree;
  reading(value.name, [&] {
    const InputFile source(folder_ / value.place.file);
    const SectionSource section(source, value.place.offset, value.place.length);
    TorchFile file(section);
    if (!tensors_below(file.root()).empty())
      throw CheckpointError("there are tensors in plain data of " + source.name() + ", which is not supported.");
    tree = file.take_tree();
  });
  return tree;
}

}  // namespace accelerate::detail
