#include <accelerate/core/byte_size.h>
#include <accelerate/core/error.h>
#include <accelerate/core/format.h>

#include <array>
#include <cmath>

#include "core/size_text.h"

namespace accelerate {

using namespace detail;
namespace {

// The longer names first: "1GiB" does not end with a unit of the second kind, but a reader should not have to check.
constexpr std::array<SizeUnit, 6> kMemoryUnits = {{{"GIB", 0x1p30},
                                                   {"MIB", 0x1p20},
                                                   {"KIB", 0x1p10},
                                                   {"GB", 1e9, /*may_be_bits=*/true},
                                                   {"MB", 1e6, /*may_be_bits=*/true},
                                                   {"KB", 1e3, /*may_be_bits=*/true}}};

}  // namespace

ByteSize::ByteSize(std::string_view text) {
  const auto bytes = parse_size(text, kMemoryUnits);
  if (!bytes) {
    throw UsageError(
        "'" + std::string(text) +
        "' is not an amount of memory. Give a number and a unit (KB, MB, GB, KiB, MiB or GiB), such as 1.5GiB, or a number of "
        "bytes.");
  }
  bytes_ = *bytes;
}

ByteSize::ByteSize(const char* text) : ByteSize(std::string_view(text == nullptr ? "" : text)) {}

double ByteSize::checked(double bytes) {
  if (!(bytes >= 0)) throw UsageError(accelerate::format("{} bytes is not an amount of memory: it cannot be negative.", bytes));
  return bytes;
}

std::string to_string(const ByteSize& size) {
  const bool whole = size.bytes() == std::floor(size.bytes());
  return whole ? accelerate::format("{:.0f}", size.bytes()) : accelerate::format("{}", size.bytes());
}

}  // namespace accelerate
