#pragma once

#include <deque>
#include <list>

#include "elastic/connection.h"
#include "elastic/machine_group.h"
#include "elastic/rendezvous_secret.h"

namespace accelerate::detail {

/// Machine 0 of a group: it listens, admits the others, begins rounds when all are ready, and passes on what each reports.
class MachineHub final : public MachineGroup {
 public:
  explicit MachineHub(const MachineSettings& settings);
  ~MachineHub() override;

  void release() override;
  void add_to(std::vector<pollfd>& watched) const override;
  std::optional<Clock::time_point> deadline() const override;
  void serve() override;
  void be_ready() override;
  std::optional<Round> take_round() override;
  std::string refusal() const override { return refusal_; }
  std::string awaited() const override;
  void report(const MachineFailure& failure) override;
  void report_success() override;
  bool all_succeeded() const override { return over_; }
  std::optional<MachineFailure> take_failure() override;
  std::string warning() const override { return warning_; }

 private:
  /// Whoever has connected; a machine once it is admitted.
  struct Peer {
    Connection connection;
    std::string nonce = {};
    Clock::time_point accepted = Clock::now();
    std::optional<int> machine = {};
    std::string host = {};
    bool ready = false, succeeded = false;
  };

  void listen();
  void accept_all();
  void hear(Peer& peer);
  void admit(Peer& peer, const Connection::Fields& hello);
  std::string reason_to_refuse(const Peer& peer, const Connection::Fields& hello) const;
  void lose(const Peer& peer);
  void pass_on(const MachineFailure& failure);
  void tell_all(const Connection::Fields& message, int but);
  void begin_if_all_ready();
  void end_if_all_succeeded();
  const Peer* find(int machine) const;
  std::vector<int> missing() const;

  const MachineSettings settings_;
  const RendezvousSecret secret_;
  std::string warning_ = {}, refusal_ = {};
  int listener_ = -1;
  std::list<Peer> peers_ = {};
  std::deque<MachineFailure> failures_ = {};
  std::optional<Round> begun_ = {};
  int round_ = -1;
  bool running_ = false, ready_ = false, succeeded_ = false, over_ = false;
  std::optional<Clock::time_point> give_up_ = {};
};

}  // namespace accelerate::detail
