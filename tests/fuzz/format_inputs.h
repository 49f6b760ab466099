#pragma once

#include <accelerate/core/error.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "checkpoint_files/distributed_metadata.h"
#include "formats/pickle_reader.h"
#include "formats/pickle_writer.h"
#include "formats/safetensors_file.h"
#include "formats/torch_file.h"
#include "formats/weight_index.h"

/// What fuzzing feeds to the parsers of files that are not trusted. Each input is either refused with an error of ours, or what
/// was read of it holds together; anything else throws std::logic_error, which nobody catches.
namespace accelerate::testing {

using namespace detail;

inline void require_sound(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// A pickle that is read can be written, and what is written is read as the same.
inline void try_pickle_input(std::string_view bytes) {
  try {
    const PickleTree tree = read_pickle(bytes, "fuzzed");
    const std::string written = write_pickle(*tree.root);
    const PickleTree again = read_pickle(written, "written");
    require_sound(write_pickle(*again.root) == written, "a pickle changed when it was written again");
  } catch (const Error&) {
  }
}

/// Members of an archive lie inside it; tensors of a torch file lie in their storages.
inline void try_zip_input(std::string_view bytes) {
  const MemorySource source(bytes, "fuzzed");
  try {
    const ZipReader reader(source);
    for (const auto& entry : reader.entries()) {
      require_sound(entry.offset <= bytes.size() && entry.size <= bytes.size() - entry.offset, "a member lies outside");
      try {
        reader.verify(entry);
      } catch (const CheckpointError&) {
      }
    }
  } catch (const Error&) {
  }
  try {
    const TorchFile file(source);
    for (const auto* tensor : tensors_below(file.root())) {
      if (tensor->device == "meta") continue;
      const auto& storage = file.storage(tensor->storage);
      require_sound(tensor_extent(*tensor, "fuzzed") <= storage.size, "a tensor lies outside");
      try {
        file.verify(storage);
      } catch (const CheckpointError&) {
      }
    }
  } catch (const Error&) {
  }
}

/// Every tensor can be read, whole and in part.
inline void try_safetensors_input(std::string_view bytes) {
  const MemorySource source(bytes, "fuzzed");
  try {
    const SafetensorsFile file(source);
    for (const auto& entry : file.header().entries) {
      require_sound(file.find(entry.name) == &entry, "a name is not found");
      std::string elements(entry.end - entry.begin, '\0');
      file.read(entry, elements.data());
      if (entry.shape.empty() || entry.shape[0] == 0 || safetensors_dtype_bits(entry.dtype) % 8 != 0) continue;
      const std::pair<int64_t, int64_t> last[] = {{entry.shape[0] - 1, entry.shape[0]}};
      std::string row(elements.size() / static_cast<size_t>(entry.shape[0]), '\0');
      file.read_slice(entry, last, row.data());
      require_sound(elements.ends_with(row), "a slice is not part of its tensor");
    }
  } catch (const Error&) {
  }
}

/// The `.metadata` of a distributed checkpoint that is read describes tensors that are covered by chunks inside of them, and
/// says the same when it is written and read again.
inline void try_distributed_input(std::string_view bytes) {
  try {
    const auto metadata = read_distributed_metadata(bytes, "fuzzed");
    for (const auto& tensor : metadata.tensors) {
      uint64_t elements = 0;
      for (const auto& chunk : tensor.chunks) {
        elements += chunk.box.elements();
        require_sound(elements_before(tensor.shape, chunk.box, tensor.elements()) == chunk.box.elements(),
                      "a chunk lies outside");
      }
      require_sound(elements == tensor.elements(), "a tensor is not covered");
    }
    const std::string written = write_distributed_metadata(metadata);
    require_sound(read_distributed_metadata(written, "written") == metadata, "metadata changed");
  } catch (const Error&) {
  }
}

/// An index that is read says the same when it is written and read again.
inline void try_index_input(std::string_view bytes) {
  try {
    const auto index = read_weight_index(MemorySource(bytes, "fuzzed"));
    const std::string written = write_weight_index(index);
    require_sound(write_weight_index(read_weight_index(MemorySource(written, "written"))) == written, "an index changed");
  } catch (const Error&) {
  }
}

}  // namespace accelerate::testing
