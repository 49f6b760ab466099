#pragma once

#include <span>
#include <string_view>

namespace accelerate::detail {

/// What the file formats call one kind of element.
struct DtypeFacts {
  /// torch's name: "float32".
  std::string_view name;
  int bytes;
  /// The class of its storages in a torch.save file, or "" where only an untyped one can hold it.
  std::string_view storage;
  /// "F32" in safetensors, or "" where that format lacks it.
  std::string_view safetensors;
};

/// Every dtype that the formats can carry.
std::span<const DtypeFacts> all_dtypes();

/// By torch's name, by the class of a storage, by safetensors' name; nullptr when there is none such.
const DtypeFacts* find_dtype(std::string_view name);
const DtypeFacts* find_dtype_of_storage(std::string_view storage);
const DtypeFacts* find_safetensors_dtype(std::string_view safetensors);

}  // namespace accelerate::detail
