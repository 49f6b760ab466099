#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// The contents of a file, for display.
namespace accelerate::detail {

/// A tensor or a plain value, named by the keys that lead to it.
struct InspectedItem {
  std::string name;
  /// "float32" of a tensor; "int", "text", "list of 625" of a value.
  std::string type;
  /// Of tensors and numpy arrays.
  std::optional<std::vector<int64_t>> shape = std::nullopt;
  uint64_t bytes = 0;
  /// Texts of the first elements, or of the value.
  std::vector<std::string> values = {};
  /// There are more than those.
  bool more = false;
  /// What else there is to say: "shares its storage with fc1.weight".
  std::string note = {};

  bool is_tensor() const { return shape.has_value(); }
};

struct InspectedFile {
  std::filesystem::path path;
  /// "safetensors", "torch", "torch (old format)", "index", "distributed checkpoint", "other".
  std::string format;
  /// What the file is for in a checkpoint, by its name: "optimizer state"; empty when that says nothing.
  std::string role;
  uint64_t bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::vector<InspectedItem> items;
  /// Why it could not be read.
  std::string problem;

  uint64_t tensors() const;
  uint64_t elements() const;
};

/// Looks into one file. CheckpointError when it is damaged.
InspectedFile inspect_file(const std::filesystem::path& path);

/// Looks into every file of a folder and of those in it, in the order of their names; what is damaged has a problem.
std::vector<InspectedFile> inspect_folder(const std::filesystem::path& folder);

/// "1.5 MB".
std::string bytes_text(uint64_t bytes);

}  // namespace accelerate::detail
