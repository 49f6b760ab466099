#include "run_state/checkpoint_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace accelerate::detail {

std::string numbered_name(const std::string& stem, size_t number, const std::string& extension) {
  return number == 0 ? stem + extension : fmt::format("{}_{}{}", stem, number, extension);
}

std::vector<std::string> model_names(size_t number) {
  return {numbered_name("model", number, ".safetensors"), numbered_name("pytorch_model", number, ".bin")};
}

std::string registered_name(size_t number) { return fmt::format("{}{}.pkl", kRegistered, number); }

std::string random_states_name(int rank) { return fmt::format("{}{}.pkl", kRandomStates, rank); }

std::string gradients_name(int rank) { return fmt::format("{}{}.safetensors", kGradients, rank); }

std::string hook_states_name(int rank) { return fmt::format("{}{}.bin", kHookStates, rank); }

std::string parameter_key(size_t model, const std::string& name) { return fmt::format("{}.{}", model, name); }

bool is_checkpoint_file(const std::string& name) {
  // A second model, optimizer or scheduler has a number; what each rank has always has one.
  enum Number { none, optional, always };
  struct Kind {
    std::string_view stem, extension;
    Number number;
  };
  static constexpr Kind kKinds[] = {
      {"model", ".safetensors", optional},
      {"pytorch_model", ".bin", optional},
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
  return std::any_of(std::begin(kKinds), std::end(kKinds), [&](const Kind& kind) {
    if (!text.starts_with(kind.stem) || !text.ends_with(kind.extension)) return false;
    if (text.size() < kind.stem.size() + kind.extension.size()) return false;
    const auto number = text.substr(kind.stem.size(), text.size() - kind.stem.size() - kind.extension.size());
    if (number.empty()) return kind.number != always;
    return kind.number != none && number.size() > 1 && number.front() == '_' &&
           number.find_first_not_of("0123456789", 1) == number.npos;
  });
}

}  // namespace accelerate::detail
