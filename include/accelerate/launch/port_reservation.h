#pragma once

namespace accelerate {

/// Keeps a port of this machine for rank 0 of one launch: as long as the object lives, no other launch takes the port for
/// its own, also while rank 0 does not listen there yet. Other programs are not kept away.
class PortReservation {
 public:
  PortReservation() = default;
  ~PortReservation() { release(); }
  PortReservation(const PortReservation&) = delete;
  PortReservation& operator=(const PortReservation&) = delete;

  /// Reserves `port` when rank 0 could listen there at every address of this machine, IPv4 and IPv6, and no other launch
  /// has it. Returns whether it did. What was reserved before is given up.
  bool take(int port);

  /// Reserves a free port and returns it: one that the system gives to no outgoing connection, while there are such.
  /// Throws DistributedError when there is none.
  int take_any();

  /// Gives the port up.
  void release();

 private:
  int lock_ = -1;
};

}  // namespace accelerate
