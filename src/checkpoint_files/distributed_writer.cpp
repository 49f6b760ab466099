#include "checkpoint_files/distributed_writer.h"

#include <accelerate/core/error.h>

#include <unordered_map>

#include "core/escaped.h"
#include "formats/torch_file.h"

namespace accelerate::detail {
namespace {

/// The folder inside of an archive that torch.save writes to a stream.
constexpr const char* kStreamArchive = "archive";

/// Counts bytes and looks at none of them.
class CountingSink final : public ByteSink {
 public:
  void write(const void* /*bytes*/, uint64_t size) override { count_ += size; }
  uint32_t write_summed(const void* /*bytes*/, uint64_t size) override {
    count_ += size;
    return 0;
  }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

std::string shown_piece(const SavedPiece& piece) { return escaped(flattened_name(piece.path), kLongestQuote); }

void require_savable(const SavedPiece& piece) {
  if (piece.path.empty()) throw UsageError("A piece of a distributed checkpoint has no name.");
  if ((piece.dtype == nullptr) == (piece.value == nullptr))
    throw UsageError(shown_piece(piece) + " is to be saved as a tensor or as plain data: give either a dtype or a value.");
  if (piece.value != nullptr) {
    if (!tensors_below(*piece.value).empty())
      throw UsageError(shown_piece(piece) + " is plain data with tensors in it. Save each of them under a name of its own.");
  } else if (cover_of(piece.shape, {&piece.box, 1}) == BoxCover::kOutside) {
    throw UsageError("A box of " + shown_piece(piece) + " lies outside of the tensor.");
  }
}

bool is_empty_piece(const SavedPiece& piece) { return piece.value == nullptr && piece.box.elements() == 0; }

uint64_t piece_bytes(const SavedPiece& piece) { return piece.box.elements() * static_cast<uint64_t>(piece.dtype->bytes); }

PickleTensor chunk_tensor(const SavedPiece& piece) {
  PickleTensor tensor;
  tensor.storage = "0";
  tensor.dtype = piece.dtype;
  tensor.storage_elements = piece.box.elements();
  tensor.sizes = piece.box.sizes;
  tensor.strides.assign(tensor.sizes.size(), 1);
  for (size_t i = tensor.sizes.size(); i-- > 1;) tensor.strides[i - 1] = tensor.strides[i] * tensor.sizes[i];
  return tensor;
}

void write_value(const SavedPiece& piece, ByteSink& sink) { TorchFileWriter(sink, kStreamArchive, *piece.value).finish(); }

/// `fill` writes the elements.
template <typename Fill>
void write_chunk(const SavedPiece& piece, ByteSink& sink, Fill fill) {
  PickleTree tree;
  tree.root = tree.tensor(chunk_tensor(piece));
  TorchFileWriter writer(sink, kStreamArchive, *tree.root);
  writer.begin("0", piece_bytes(piece));
  fill(writer);
  writer.finish();
}

uint64_t archive_length(const SavedPiece& piece) {
  CountingSink sink;
  if (piece.value != nullptr) {
    write_value(piece, sink);
  } else {
    write_chunk(piece, sink, [&](TorchFileWriter& writer) { writer.write(nullptr, piece_bytes(piece)); });
  }
  return sink.count();
}

void fill_chunk(const SavedPiece& piece, TorchFileWriter& writer) {
  if (!piece.give) return writer.write(piece.bytes, piece_bytes(piece));
  uint64_t given = 0;
  piece.give([&](const void* bytes, uint64_t size) {
    given += size;
    writer.write(bytes, size);
  });
  if (given != piece_bytes(piece))
    throw UsageError("A chunk of " + shown_piece(piece) + " has " + std::to_string(piece_bytes(piece)) + " bytes, but " +
                     std::to_string(given) + " were given.");
}

}  // namespace

std::vector<SavedPiece> pieces_of_range(const StatePath& path, const DtypeFacts& dtype, const std::vector<int64_t>& shape,
                                        uint64_t begin, uint64_t end, const void* bytes) {
  std::vector<SavedPiece> pieces;
  const auto* next = static_cast<const char*>(bytes);
  for (TensorBox& box : boxes_of_range(shape, begin, end)) {
    const uint64_t size = box.elements() * static_cast<uint64_t>(dtype.bytes);
    pieces.push_back({.path = path, .dtype = &dtype, .shape = shape, .box = std::move(box), .bytes = next});
    next += size;
  }
  if (element_count(shape) == 0) {
    TensorBox nothing{std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.size(), 0)};
    pieces.push_back({.path = path, .dtype = &dtype, .shape = shape, .box = std::move(nothing)});
  }
  return pieces;
}

DistributedMetadata plan_distributed_file(const std::vector<SavedPiece>& pieces, const std::string& file) {
  DistributedMetadata plan;
  std::unordered_map<std::string, size_t> places;
  uint64_t offset = 0;
  for (const auto& piece : pieces) {
    require_savable(piece);
    StoredPlace place{file, offset, is_empty_piece(piece) ? 0 : archive_length(piece)};
    offset += place.length;
    std::string name = flattened_name(piece.path);
    if (piece.value != nullptr) {
      plan.values.push_back({std::move(name), piece.path, std::move(place)});
      continue;
    }
    const auto [known, is_new] = places.try_emplace(name, plan.tensors.size());
    if (is_new) plan.tensors.push_back({std::move(name), piece.path, piece.dtype, piece.shape});
    DistributedTensor& tensor = plan.tensors[known->second];
    if (tensor.dtype != piece.dtype || tensor.shape != piece.shape)
      throw UsageError("The pieces of " + shown_piece(piece) + " differ in dtype or shape.");
    if (!is_empty_piece(piece)) tensor.chunks.push_back({piece.box, std::move(place)});
  }
  return plan;
}

void write_distributed_file(const std::vector<SavedPiece>& pieces, ByteSink& sink) {
  for (const auto& piece : pieces) {
    require_savable(piece);
    if (piece.value != nullptr) {
      write_value(piece, sink);
    } else if (!is_empty_piece(piece)) {
      write_chunk(piece, sink, [&](TorchFileWriter& writer) { fill_chunk(piece, writer); });
    }
  }
}

}  // namespace accelerate::detail
