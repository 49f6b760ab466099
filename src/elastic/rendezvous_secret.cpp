#include "elastic/rendezvous_secret.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "core/file.h"
#include "core/sha256.h"

namespace accelerate::detail {
namespace {

constexpr const char* kSecretVariable = "ACCELERATE_RENDEZVOUS_SECRET";
constexpr const char* kSecretFileVariable = "ACCELERATE_RENDEZVOUS_SECRET_FILE";
/// Anyone who reaches the store sees codes made with the secret, and can brute-force it offline.
constexpr size_t kShortestSecret = 16;
constexpr uint64_t kLongestSecret = 4096;

std::string read_secret_file(const std::string& path) {
  std::string text;
  try {
    const InputFile file(path);  // never one that waits for a writer
    text = file.text(0, std::min(file.size(), kLongestSecret));
  } catch (const CheckpointError& error) {
    throw ConfigError(std::string(kSecretFileVariable) + "=" + path +
                      " cannot be read: every host needs that file, readable by the user that runs the ranks. " + error.what());
  }
  const auto end = text.find_last_not_of(" \t\r\n");
  return end == std::string::npos ? "" : text.substr(0, end + 1);
}

}  // namespace

RendezvousSecret RendezvousSecret::read(const Environment& environment) {
  const auto text = environment(kSecretVariable), path = environment(kSecretFileVariable);
  if (!text && !path) return {};
  if (text && path)
    throw ConfigError(std::string(kSecretVariable) + " and " + kSecretFileVariable + " are both set: keep one of them.");
  RendezvousSecret secret;
  secret.secret_ = text ? *text : read_secret_file(*path);
  if (secret.secret_.size() < kShortestSecret)
    throw ConfigError(std::string(text ? kSecretVariable : kSecretFileVariable) + " gives a secret of " +
                      std::to_string(secret.secret_.size()) + " characters: expected " + std::to_string(kShortestSecret) +
                      " or more, for example the output of `openssl rand -hex 32`.");
  return secret;
}

std::string RendezvousSecret::prove(std::initializer_list<std::string_view> facts) const {
  if (!given()) return "";
  std::string message;
  for (const auto fact : facts) message.append(std::to_string(fact.size())).append(":").append(fact);
  return hmac_sha256(secret_, message);
}

std::string make_nonce() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

bool RendezvousSecret::proves(std::string_view proof, std::initializer_list<std::string_view> facts) const {
  return equal_codes(proof, prove(facts));
}

}  // namespace accelerate::detail
