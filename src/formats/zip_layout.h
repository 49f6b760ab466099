#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

/// Constants of the zip format that reader and writer share. Numbers are little-endian, as is every supported host.
namespace accelerate::detail::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50, kDescriptorSignature = 0x08074b50;
inline constexpr uint32_t kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50, kLocator64Signature = 0x07064b50;
inline constexpr uint64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocator64Size = 20;
/// A 32-bit size or offset with this value says that the real one stands in the zip64 field.
inline constexpr uint32_t kSee64 = 0xFFFFFFFF;
inline constexpr uint16_t kExtra64 = 0x0001;
inline constexpr uint16_t kFlagEncrypted = 0x0001, kFlagDescriptor = 0x0008, kFlagUtf8 = 0x0800;

/// The number at `offset`; the caller has checked the bounds.
template <typename Number>
Number number_at(std::string_view bytes, uint64_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

/// Appends numbers, each with the width of its type.
template <typename... Numbers>
void append_numbers(std::string& bytes, Numbers... numbers) {
  static_assert((std::is_unsigned_v<Numbers> && ...));
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
}

}  // namespace accelerate::detail::zip
