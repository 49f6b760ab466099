#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace accelerate::detail {

/// A unit of memory, in capitals.
struct SizeUnit {
  std::string_view name;
  double bytes;
  /// With a small b at its end it counts bits.
  bool may_be_bits = false;
};

/// Whole bytes of a number and one of `units` in any case: of "1.5GB", "12 mb". The first unit that the text ends with counts.
/// Nothing when the text is not of that kind, or too large for 63 bits.
std::optional<double> parse_size(std::string_view text, std::span<const SizeUnit> units);

}  // namespace accelerate::detail
