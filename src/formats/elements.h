#pragma once

#include <complex>
#include <cstdint>
#include <string>
#include <variant>

#include "formats/dtype_facts.h"

namespace accelerate::detail {

/// One element of a tensor, whatever its dtype.
using Element = std::variant<bool, int64_t, uint64_t, double, std::complex<double>>;

/// Reads the element of `dtype.bytes` bytes at `bytes`.
Element read_element(const DtypeFacts& dtype, const void* bytes);

/// The shortest text that means the same element: "0.1" for the float32 nearest to it.
std::string element_text(const DtypeFacts& dtype, const Element& element);

}  // namespace accelerate::detail
