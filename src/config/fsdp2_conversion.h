#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A configuration whose `fsdp_config` is for version 2 of FSDP.
struct Fsdp2Conversion {
  nlohmann::json config;
  /// What the user should know: keys that were left out, or why nothing was converted.
  std::vector<std::string> notes = {};
};

/// Converts the values of a file for version 1, as Python's to-fsdp2 does: keys that version 2 lacks are left out, the sharding
/// strategy becomes `fsdp_reshard_after_forward`, all others stay. ConfigError, beginning with `path`, when `fsdp_config` is no
/// mapping.
Fsdp2Conversion to_fsdp2(nlohmann::json config, const std::string& path);

}  // namespace accelerate::detail
