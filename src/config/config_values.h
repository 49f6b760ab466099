#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_document.h"

namespace accelerate::detail {

/// Every key of the document's schema, with its value or its default. Keys of older versions are converted. ConfigError,
/// beginning with `path` and the line if known, for keys and values that the schema does not allow.
nlohmann::json complete_values(ConfigDocument document, const std::string& path);

}  // namespace accelerate::detail
