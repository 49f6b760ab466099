#pragma once

#include <deque>
#include <list>

#include "elastic/machine_messages.h"

namespace accelerate::detail {

/// Machine 0 of a group: it listens, admits the others, begins rounds when all are ready, and passes on what each reports.
class MachineHub final : public MachineGroup {
 public:
  /// Takes a socket that listens; see `listen`.
  MachineHub(const MachineSettings& settings, int listener, const std::string& warning);
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
  /// Whoever has connected.
  struct Peer {
    Connection connection;
    std::string nonce = {};
    Clock::time_point accepted = Clock::now();
    /// What it said when it was admitted.
    std::optional<Hello> hello = {};
    /// Its rank: the one it has, or the one that it was given when a round began.
    std::optional<int> machine = {};
    bool ready = false, in_round = false, succeeded = false;
  };

  void accept_all();
  void hear(Peer& peer);
  void admit(Peer& peer, const Hello& hello);
  void hear_failure(Peer& peer, const Connection::Fields& message);
  void lose(const Peer& peer);
  void end_round(MachineFailure failure);
  void regroup_for(Peer& peer);
  void tell_others(const Connection::Fields& message, int but);
  void begin_if_possible();
  void begin(const std::vector<Peer*>& members);
  static std::string interface_to(const std::vector<Peer*>& members);
  void end_if_all_succeeded();
  std::vector<Peer*> ready_members();
  bool wait_for_more(size_t machines);
  const Peer* find(int machine) const;
  std::vector<int> missing() const;
  bool numbers_machines() const { return !settings_.rank; }

  const MachineSettings settings_;
  const RendezvousSecret secret_;
  const std::string warning_;
  std::string refusal_ = {};
  int listener_ = -1;
  std::list<Peer> peers_ = {};
  std::deque<MachineFailure> failures_ = {};
  std::optional<Round> begun_ = {};
  Round round_ = {.number = -1};
  bool running_ = false, ready_ = false, succeeded_ = false, over_ = false;
  bool failed_by_itself_ = false, collective_failed_ = false, regroups_ = false;  // in this round
  std::optional<Clock::time_point> give_up_ = {}, last_call_ = {};
};

/// A socket on which machine 0 listens for the others.
struct HubListener {
  /// -1: it cannot listen.
  int socket = -1;
  /// What a user should know of it.
  std::string warning = {};
};
HubListener listen_for_machines(const MachineSettings& settings);

}  // namespace accelerate::detail
