#pragma once

#include <optional>
#include <string>

#include "elastic/connection.h"
#include "elastic/machine_group.h"
#include "elastic/rendezvous_secret.h"

/// What launchers say to each other. Machine 0 greets whoever connects with a nonce. A machine answers with who it is, a nonce of
/// its own and a proof that it knows the shared secret, if there is one; machine 0 welcomes it, with such a proof, or refuses it.
/// One whose rank is taken tries again for a while: the machine that it replaces may be gone, and its loss not be noticed yet.
/// One that joins a group which is complete waits as a spare.
namespace accelerate::detail {

inline constexpr char kGreeting[] = "accelerate-launch-2", kHello[] = "hello", kWelcome[] = "welcome", kRefused[] = "refused",
                      kTaken[] = "taken", kReady[] = "ready", kStart[] = "start", kSpare[] = "spare", kFailed[] = "failed",
                      kSucceeded[] = "succeeded", kOver[] = "over", kLeaving[] = "leaving";

/// A number in a message; nothing when it is none, or negative.
std::optional<int> number_in(const Connection::Fields& message, size_t place);
std::string field_in(const Connection::Fields& message, size_t place);

/// Who a machine is.
struct Hello {
  std::string job = {};
  int count = 0, fewest = 0;
  /// None: it is to be numbered.
  std::optional<int> rank = {};
  std::string host = {};
  int processes = 0;
  bool heterogeneous = false;
  int max_restarts = 0;
  std::string nonce = {}, proof = {};

  /// That of this machine, with a proof for who sent `nonce_of_hub`.
  static Hello of(const MachineSettings& settings, const RendezvousSecret& secret, const std::string& nonce_of_hub);
  /// Nothing when the message is malformed.
  static std::optional<Hello> read(const Connection::Fields& message);
  Connection::Fields message() const;
  /// All of it but the proof, which is made over this.
  std::string facts(const std::string& nonce_of_hub) const;
};

/// Why the machine with this hello cannot be part of the group of `settings`; empty when it can.
std::string reason_to_refuse(const Hello& hello, const MachineSettings& settings, const RendezvousSecret& secret,
                             const std::string& nonce_of_hub);

Connection::Fields start_message(const Round& round);
std::optional<Round> read_start(const Connection::Fields& message);

Connection::Fields failure_message(int round, const MachineFailure& failure);
/// Of a message of this round; nothing when it is malformed or of another one.
std::optional<MachineFailure> read_failure(const Connection::Fields& message, int round);

/// The name of this host.
std::string own_host();

}  // namespace accelerate::detail
