#pragma once

#include <accelerate/core/launch_environment.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// A secret that all ranks of a job share, or none. It is never sent: ranks prove to each other that they know it.
class RendezvousSecret {
 public:
  /// None.
  RendezvousSecret() = default;
  /// From ACCELERATE_RENDEZVOUS_SECRET, or the file that ACCELERATE_RENDEZVOUS_SECRET_FILE names. ConfigError when that is there
  /// and cannot protect anything: no file, nothing in it, too short to withstand guessing.
  static RendezvousSecret read(const Environment& environment);

  bool given() const { return !secret_.empty(); }
  /// A code over `facts` that only who knows the secret can make; empty without one.
  std::string prove(std::initializer_list<std::string_view> facts) const;
  /// Whether `proof` is that code.
  bool proves(std::string_view proof, std::initializer_list<std::string_view> facts) const;

 private:
  std::string secret_;
};

/// A number that nobody can guess, as text: what is proved over it was proved now.
std::string make_nonce();

}  // namespace accelerate::detail
