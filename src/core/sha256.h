#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// The SHA-256 digest of `message` (FIPS 180-4), as 64 hexadecimal digits.
std::string sha256(std::string_view message);

/// HMAC with SHA-256 (RFC 2104): shows that its maker knows `key`, as 64 hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view message);

/// Compares two codes in constant time.
bool equal_codes(std::string_view left, std::string_view right);

}  // namespace accelerate::detail
