#pragma once

namespace accelerate {

/// Reserves a port of this host for rank 0 of one launch: while the object lives, no other launch takes the port, even if rank 0
/// does not listen on it yet. Other programs are not prevented from using it.
class PortReservation {
 public:
  PortReservation() = default;
  ~PortReservation() { release(); }
  PortReservation(const PortReservation&) = delete;
  PortReservation& operator=(const PortReservation&) = delete;

  /// Reserves `port` if rank 0 could listen on it at every address of this host, IPv4 and IPv6, and no other launch has it.
  /// Returns whether it did. Releases the previous reservation.
  bool take(int port);

  /// Reserves a free port and returns it, if possible one outside the ephemeral port range.
  /// Throws DistributedError when there is none.
  int take_any();

  /// Releases the port.
  void release();

 private:
  int lock_ = -1;
};

}  // namespace accelerate
