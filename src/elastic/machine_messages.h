#pragma once

#include <optional>
#include <string>

#include "elastic/connection.h"
#include "elastic/machine_group.h"

/// What launchers say to each other. Machine 0 greets whoever connects with a nonce. A machine answers with who it is, a nonce of
/// its own and a proof that it knows the shared secret, if there is one; machine 0 welcomes it, with such a proof, or refuses it.
/// One whose rank is taken tries again for a while: the machine that it replaces may be gone, and its loss not be noticed yet.
namespace accelerate::detail {

inline constexpr char kGreeting[] = "accelerate-launch-1", kHello[] = "hello", kWelcome[] = "welcome", kRefused[] = "refused",
                      kTaken[] = "taken", kReady[] = "ready", kStart[] = "start", kFailed[] = "failed",
                      kSucceeded[] = "succeeded", kOver[] = "over", kLeaving[] = "leaving";

/// A number in a message; nothing when it is none, or negative.
std::optional<int> number_in(const Connection::Fields& message, size_t place);
std::string field_in(const Connection::Fields& message, size_t place);

Connection::Fields failure_message(int round, const MachineFailure& failure);
/// Of a message of this round; nothing when it is malformed or of another one.
std::optional<MachineFailure> read_failure(const Connection::Fields& message, int round);

/// The name of this host.
std::string own_host();

}  // namespace accelerate::detail
