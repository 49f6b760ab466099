#include <accelerate/core/error.h>
#include <accelerate/training/precision.h>

#include <array>

namespace accelerate {

const char* to_string(Precision precision) {
  static constexpr std::array kNames = {"no", "fp16", "bf16", "fp8"};
  return kNames[static_cast<size_t>(precision)];
}

Precision parse_precision(const std::string& text, const std::string& what) {
  for (const auto precision : {Precision::no, Precision::fp16, Precision::bf16, Precision::fp8}) {
    if (text == to_string(precision)) return precision;
  }
  throw ConfigError(what + "=" + text + ": expected one of no, fp16, bf16, fp8.");
}

}  // namespace accelerate
