#pragma once

#include <optional>
#include <string>

namespace accelerate::detail {

/// Where rank 0 listens for the others.
struct StoreListener {
  /// A socket that listens at the one address that is needed. None: c10d is to listen at all addresses of this host, or to find
  /// that the port is in use.
  std::optional<int> socket = std::nullopt;
  /// The address at which rank 0 itself reaches it.
  std::string reached_at = {};
  /// Why it is all addresses; empty when it is not.
  std::string warning = {};
};

/// Listens at the address of this host that `address` (MASTER_ADDR) means, and at no other. It may be none of this host's (NAT,
/// the address of a Kubernetes service), several of them, or one that only this host means by that name: then at all.
StoreListener listen_for_ranks(const std::string& address, int port);

/// Whether `address` is one of this host's.
bool is_own_address(const std::string& address);

}  // namespace accelerate::detail
