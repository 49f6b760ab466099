#include "formats/elements.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace accelerate::detail {
namespace {

/// A float of up to 16 bits: sign, exponent, fraction, from the top.
struct SmallFloat {
  std::string_view dtype;
  int exponent_bits, fraction_bits, bias;
  enum class Specials { kIeee, kLastIsNan, kNegativeZeroIsNan } specials;
};
constexpr std::array<SmallFloat, 6> kSmallFloats = {{
    {"float16", 5, 10, 15, SmallFloat::Specials::kIeee},
    {"bfloat16", 8, 7, 127, SmallFloat::Specials::kIeee},
    {"float8_e5m2", 5, 2, 15, SmallFloat::Specials::kIeee},
    {"float8_e4m3fn", 4, 3, 7, SmallFloat::Specials::kLastIsNan},
    {"float8_e4m3fnuz", 4, 3, 8, SmallFloat::Specials::kNegativeZeroIsNan},
    {"float8_e5m2fnuz", 5, 2, 16, SmallFloat::Specials::kNegativeZeroIsNan},
}};

double decode(const SmallFloat& kind, uint32_t bits) {
  const int width = 1 + kind.exponent_bits + kind.fraction_bits;
  const bool negative = (bits >> (width - 1) & 1) != 0;
  const uint32_t last = (1U << kind.exponent_bits) - 1;
  const uint32_t exponent = bits >> kind.fraction_bits & last;
  const uint32_t fraction = bits & ((1U << kind.fraction_bits) - 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (kind.specials == SmallFloat::Specials::kNegativeZeroIsNan && bits == 1U << (width - 1)) return nan;
  if (kind.specials == SmallFloat::Specials::kLastIsNan && exponent == last && fraction == (1U << kind.fraction_bits) - 1)
    return nan;
  if (kind.specials == SmallFloat::Specials::kIeee && exponent == last) {
    return fraction != 0 ? nan : std::copysign(std::numeric_limits<double>::infinity(), negative ? -1.0 : 1.0);
  }
  const uint32_t significand = fraction | (exponent != 0 ? 1U << kind.fraction_bits : 0);
  const int scale = std::max(static_cast<int>(exponent), 1) - kind.bias - kind.fraction_bits;
  return std::copysign(std::ldexp(significand, scale), negative ? -1.0 : 1.0);
}

const SmallFloat* find_small_float(std::string_view dtype) {
  for (const auto& kind : kSmallFloats) {
    if (kind.dtype == dtype) return &kind;
  }
  return nullptr;
}

template <typename T>
T load_as(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int64_t load_signed(const void* bytes, int size) {
  switch (size) {
    case 1:
      return load_as<int8_t>(bytes);
    case 2:
      return load_as<int16_t>(bytes);
    case 4:
      return load_as<int32_t>(bytes);
    default:
      return load_as<int64_t>(bytes);
  }
}

uint64_t load_unsigned(const void* bytes, int size) {
  uint64_t value = 0;
  std::memcpy(&value, bytes, static_cast<size_t>(size));
  return value;
}

template <typename T>
std::string shortest(T value) {
  std::array<char, 64> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

std::string real_text(const DtypeFacts& dtype, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string text = dtype.bytes >= 8 && dtype.name != "complex64" ? shortest(value) : shortest(static_cast<float>(value));
  if (text.find_first_of(".en") == std::string::npos) text += ".";  // a whole number, but of a float
  return text;
}

}  // namespace

Element read_element(const DtypeFacts& dtype, const void* bytes) {
  if (const SmallFloat* small = find_small_float(dtype.name))
    return decode(*small, static_cast<uint32_t>(load_unsigned(bytes, dtype.bytes)));
  if (dtype.name == "float8_e8m0fnu") {  // an exponent and nothing else
    const auto exponent = load_as<uint8_t>(bytes);
    return exponent == 0xFF ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent - 127);
  }
  if (dtype.name == "float32") return static_cast<double>(load_as<float>(bytes));
  if (dtype.name == "float64") return load_as<double>(bytes);
  if (dtype.name == "bool") return load_as<uint8_t>(bytes) != 0;
  if (dtype.name == "complex64") return std::complex<double>(load_as<std::complex<float>>(bytes));
  if (dtype.name == "complex128") return load_as<std::complex<double>>(bytes);
  if (dtype.name == "complex32") {
    const auto* halves = static_cast<const char*>(bytes);
    return std::complex<double>(decode(kSmallFloats[0], load_as<uint16_t>(halves)),
                                decode(kSmallFloats[0], load_as<uint16_t>(halves + 2)));
  }
  if (dtype.name.starts_with("uint")) return load_unsigned(bytes, dtype.bytes);
  return load_signed(bytes, dtype.bytes);
}

std::string element_text(const DtypeFacts& dtype, const Element& element) {
  if (const auto* flag = std::get_if<bool>(&element)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&element)) return std::to_string(*number);
  if (const auto* number = std::get_if<uint64_t>(&element)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&element)) return real_text(dtype, *number);
  const auto& number = std::get<std::complex<double>>(element);
  const std::string imaginary = real_text(dtype, number.imag());
  return real_text(dtype, number.real()) + (imaginary.starts_with('-') ? "" : "+") + imaginary + "i";
}

}  // namespace accelerate::detail
