#pragma once

#include <netdb.h>

#include <deque>

#include "elastic/machine_messages.h"

namespace accelerate::detail {

/// A machine other than 0: it connects to machine 0's launcher, again and again until that listens.
class MachineMember final : public MachineGroup {
 public:
  explicit MachineMember(const MachineSettings& settings);
  ~MachineMember() override;

  void release() override { connection_.reset(); }
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

 private:
  void connect();
  void hear(const Connection::Fields& message);
  void hear_as_member(const Connection::Fields& message);
  void answer_greeting(const std::string& nonce);
  void lose();
  std::string place() const;

  const MachineSettings settings_;
  const RendezvousSecret secret_;
  std::optional<Connection> connection_ = {};
  size_t attempts_ = 0;
  std::string problem_ = "it was not tried yet", refusal_ = {}, nonce_ = {}, hub_nonce_ = {};
  bool admitted_ = false, ready_ = false, running_ = false, spare_ = false, over_ = false;
  std::optional<Clock::time_point> retry_ = {}, give_up_ = {}, taken_since_ = {};
  std::optional<Round> begun_ = {};
  int round_ = -1;
  std::deque<MachineFailure> failures_ = {};
};

}  // namespace accelerate::detail
