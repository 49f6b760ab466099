#include "run_state/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "checkpoint_files/distributed_metadata.h"

namespace accelerate::detail {
namespace {

bool is_number(std::string_view text) { return !text.empty() && text.find_first_not_of("0123456789") == text.npos; }

/// "__3_0.distcp", ".metadata".
bool is_distributed_file(std::string_view name) {
  constexpr std::string_view kFirst = "__", kLast = ".distcp";
  if (name == kDistributedMetadataName) return true;
  if (!name.starts_with(kFirst) || !name.ends_with(kLast) || name.size() < kFirst.size() + kLast.size()) return false;
  name = name.substr(kFirst.size(), name.size() - kFirst.size() - kLast.size());
  const auto middle = name.find('_');
  return middle != name.npos && is_number(name.substr(0, middle)) && is_number(name.substr(middle + 1));
}

/// A second model, optimizer or scheduler has a number; what each rank has always has one.
enum class Numbered : uint8_t { none, optional, always };

bool is_numbered(std::string_view text, std::string_view stem, std::string_view extension, Numbered numbered) {
  if (!text.starts_with(stem) || !text.ends_with(extension) || text.size() < stem.size() + extension.size()) return false;
  const auto number = text.substr(stem.size(), text.size() - stem.size() - extension.size());
  if (number.empty()) return numbered != Numbered::always;
  return numbered != Numbered::none && number.front() == '_' && is_number(number.substr(1));
}

}  // namespace

std::string numbered_name(const std::string& stem, size_t number, const std::string& extension) {
  return number == 0 ? stem + extension : fmt::format("{}_{}{}", stem, number, extension);
}

std::vector<std::string> model_names(size_t number) {
  return {numbered_name("model", number, ".safetensors"), numbered_name("pytorch_model", number, ".bin"),
          sharded_model_name(number), sharded_model_folder(number)};
}

std::string optimizer_name(size_t number) { return numbered_name("optimizer", number, ".bin"); }

std::string optimizer_folder(size_t number) { return fmt::format("optimizer_{}", number); }

std::string sharded_model_folder(size_t number) { return fmt::format("pytorch_model_fsdp_{}", number); }

std::string sharded_model_name(size_t number) { return numbered_name("pytorch_model_fsdp", number, ".bin"); }

std::string registered_name(size_t number) { return fmt::format("{}{}.pkl", kRegistered, number); }

std::string random_states_name(int rank) { return fmt::format("{}{}.pkl", kRandomStates, rank); }

std::string gradients_name(int rank) { return fmt::format("{}{}.safetensors", kGradients, rank); }

std::string hook_states_name(int rank) { return fmt::format("{}{}.bin", kHookStates, rank); }

std::string parameter_key(size_t model, const std::string& name) { return fmt::format("{}.{}", model, name); }

std::string piece_key(size_t model, const std::string& name) { return kPiece + parameter_key(model, name); }

bool is_checkpoint_file(const std::string& name) {
  struct Kind {
    std::string_view stem, extension;
    Numbered numbered;
  };
  using enum Numbered;
  static constexpr Kind kKinds[] = {
      {"model", ".safetensors", optional},
      {"pytorch_model", ".bin", optional},
      {"pytorch_model_fsdp", ".bin", optional},
      {"optimizer", ".bin", optional},
      {"scheduler", ".bin", optional},
      {"sampler", ".bin", optional},
      {"dl_state_dict", ".bin", optional},
      {"scaler", ".pt", none},
      {"random_states", ".pkl", always},
      {"custom_checkpoint", ".pkl", always},
      {"accelerate_state", ".bin", none},
      {"accelerate_manifest", ".json", none},
      {"accelerate_gradients", ".safetensors", always},
      {"accelerate_comm_hooks", ".bin", always},
  };
  const std::string_view text = name;
  if (const auto end = text.find('/'); end != text.npos) {
    const auto folder = text.substr(0, end);
    return is_distributed_file(text.substr(end + 1)) &&
           (is_numbered(folder, "pytorch_model_fsdp", "", always) || is_numbered(folder, "optimizer", "", always));
  }
  return std::any_of(std::begin(kKinds), std::end(kKinds),
                     [&](const Kind& kind) { return is_numbered(text, kind.stem, kind.extension, kind.numbered); });
}

}  // namespace accelerate::detail
