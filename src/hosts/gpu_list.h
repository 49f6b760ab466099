#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// The entries of a list such as "0,1", without blanks around them; none for "all".
std::vector<std::string> gpus_in(const std::string& list);

/// Whether `id` is a GPU number or a UUID of a GPU or MIG instance.
bool names_a_gpu(const std::string& id);

/// `id` as a number; nothing when it is a name.
std::optional<int> gpu_number(const std::string& id);

}  // namespace accelerate::detail
