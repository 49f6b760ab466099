#pragma once

#include <string>

namespace accelerate {

/// The dtype of the forward pass.
enum class Precision { no, fp16, bf16, fp8 };
const char* to_string(Precision precision);

/// "no", "fp16", "bf16" or "fp8"; anything else is a ConfigError that names `what`.
Precision parse_precision(const std::string& text, const std::string& what);

}  // namespace accelerate
