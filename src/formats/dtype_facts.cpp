#include "formats/dtype_facts.h"

#include <algorithm>
#include <array>

namespace accelerate::detail {
namespace {

constexpr std::array<DtypeFacts, 21> kAllDtypes = {{
    {"float32", 4, "FloatStorage", "F32"},
    {"float64", 8, "DoubleStorage", "F64"},
    {"float16", 2, "HalfStorage", "F16"},
    {"bfloat16", 2, "BFloat16Storage", "BF16"},
    {"int64", 8, "LongStorage", "I64"},
    {"int32", 4, "IntStorage", "I32"},
    {"int16", 2, "ShortStorage", "I16"},
    {"int8", 1, "CharStorage", "I8"},
    {"uint8", 1, "ByteStorage", "U8"},
    {"bool", 1, "BoolStorage", "BOOL"},
    {"complex64", 8, "ComplexFloatStorage", "C64"},
    {"complex128", 16, "ComplexDoubleStorage", ""},
    {"uint16", 2, "", "U16"},
    {"uint32", 4, "", "U32"},
    {"uint64", 8, "", "U64"},
    {"float8_e4m3fn", 1, "", "F8_E4M3"},
    {"float8_e5m2", 1, "", "F8_E5M2"},
    {"float8_e4m3fnuz", 1, "", "F8_E4M3FNUZ"},
    {"float8_e5m2fnuz", 1, "", "F8_E5M2FNUZ"},
    {"float8_e8m0fnu", 1, "", "F8_E8M0"},
    {"complex32", 4, "", ""},
}};

const DtypeFacts* find_by(std::string_view DtypeFacts::*member, std::string_view value) {
  const auto* found =
      std::find_if(kAllDtypes.begin(), kAllDtypes.end(), [&](const DtypeFacts& facts) { return facts.*member == value; });
  return found == kAllDtypes.end() || value.empty() ? nullptr : found;
}

}  // namespace

std::span<const DtypeFacts> all_dtypes() { return kAllDtypes; }
const DtypeFacts* find_dtype(std::string_view name) { return find_by(&DtypeFacts::name, name); }
const DtypeFacts* find_dtype_of_storage(std::string_view storage) { return find_by(&DtypeFacts::storage, storage); }
const DtypeFacts* find_safetensors_dtype(std::string_view safetensors) { return find_by(&DtypeFacts::safetensors, safetensors); }

}  // namespace accelerate::detail
