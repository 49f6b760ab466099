#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "config/config_document.h"

namespace accelerate::detail {

/// Every key of the schema that `document` belongs to, with its value or its default. Keys of older versions become those of
/// today. ConfigError, beginning with `path` and a line where there is one, for keys and values that the schema does not know.
nlohmann::json complete_values(ConfigDocument document, const std::string& path);

}  // namespace accelerate::detail
