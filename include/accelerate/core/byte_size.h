#pragma once

#include <compare>
#include <concepts>
#include <string>
#include <string_view>

namespace accelerate {

/// An amount of memory, made of a number of bytes or of a text: "8MiB", "1.5GB". Not always whole: a bool counts as an eighth of
/// a byte in sizes of modules.
class ByteSize {
 public:
  ByteSize() = default;
  /// A number of bytes; UsageError when it is negative.
  template <typename Number>
  requires((std::integral<Number> && !std::same_as<Number, bool>) || std::floating_point<Number>) ByteSize(Number bytes)
      : bytes_(checked(static_cast<double>(bytes))) {}
  /// A number and a unit: GiB, MiB, KiB (powers of 1024), GB, MB, KB (powers of 1000), in any case; with a small b at the end GB,
  /// MB and KB count bits, as in Python. UsageError for anything else.
  ByteSize(std::string_view text);
  ByteSize(const std::string& text) : ByteSize(std::string_view(text)) {}
  ByteSize(const char* text);

  double bytes() const { return bytes_; }

  friend auto operator<=>(const ByteSize&, const ByteSize&) = default;

 private:
  static double checked(double bytes);

  double bytes_ = 0;
};

/// The number of bytes: "8388608".
std::string to_string(const ByteSize& size);

}  // namespace accelerate
