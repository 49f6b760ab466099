#include "elastic/machine_member.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "elastic/machine_hub.h"
#include "elastic/network_interface.h"
#include "elastic/rank_listener.h"

namespace accelerate::detail {
namespace {

constexpr std::chrono::milliseconds kRetryPause{200};
/// A firewall that drops packets answers nothing: then another address is tried.
constexpr std::chrono::seconds kConnecting{5};
/// Longer than the loss of a machine takes to be noticed.
constexpr std::chrono::seconds kTakenForGood{40};

}  // namespace

std::unique_ptr<MachineGroup> MachineGroup::join(const MachineSettings& settings) {
  const bool listens = settings.rank ? *settings.rank == 0 : settings.hosts.value_or(is_own_address(settings.address));
  if (!listens) return std::make_unique<MachineMember>(settings);
  const auto listener = listen_for_machines(settings);
  if (listener.socket >= 0) return std::make_unique<MachineHub>(settings, listener.socket, listener.warning);
  // Another launcher on this host may be machine 0.
  if (!settings.rank && !settings.hosts) return std::make_unique<MachineMember>(settings);
  throw DistributedError(
      fmt::format("Cannot listen for the other machines at {}:{}: {}. Give a free port as --main_process_port.", settings.address,
                  settings.port, std::strerror(errno)));
}

MachineMember::MachineMember(const MachineSettings& settings)
    : settings_(settings), secret_(RendezvousSecret::read(settings.environment)) {
  connect();
}

MachineMember::~MachineMember() {
  if (!connection_ || !admitted_) return;
  connection_->send({kLeaving});
  connection_->flush();
}

std::string MachineMember::place() const { return fmt::format("{}:{}", settings_.address, settings_.port); }

void MachineMember::connect() {
  retry_ = Clock::now() + kRetryPause;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(settings_.address.c_str(), std::to_string(settings_.port).c_str(), &hints, &found);
  if (error != 0) {
    problem_ = ::gai_strerror(error);
    return;
  }
  std::vector<const addrinfo*> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) addresses.push_back(each);
  connection_.emplace(*addresses[attempts_++ % addresses.size()]);
  ::freeaddrinfo(found);
  retry_ = Clock::now() + kConnecting;
}

void MachineMember::add_to(std::vector<pollfd>& watched) const {
  if (connection_ && connection_->is_open())
    watched.push_back({.fd = connection_->descriptor(), .events = connection_->events(), .revents = 0});
}

std::optional<MachineGroup::Clock::time_point> MachineMember::deadline() const {
  if (!refusal_.empty()) return std::nullopt;
  if (admitted_ || !retry_) return give_up_;
  return give_up_ ? std::min(*retry_, *give_up_) : *retry_;
}

void MachineMember::serve() {
  if (connection_) {
    connection_->serve();
    while (const auto message = connection_->take()) hear(*message);
    if (!connection_->is_open()) lose();
  }
  if (!refusal_.empty()) return;
  if (!admitted_ && !over_ && Clock::now() >= retry_.value_or(Clock::time_point::max())) {
    if (connection_ && nonce_.empty())
      problem_ = connection_->is_connected() ? "whoever listens there is no launcher of this version"
                                             : "no answer: a firewall may drop what is sent to that port";
    nonce_.clear();
    connection_.reset();
    connect();
  }
  if (give_up_ && Clock::now() >= *give_up_)
    refusal_ = admitted_ ? fmt::format("machine 0 at {} did not begin within {} s: it waits for other machines.", place(),
                                       settings_.patience.count() / 1000)
                         : fmt::format("machine 0's launcher could not be reached at {} within {} s: {}.", place(),
                                       settings_.patience.count() / 1000, problem_);
}

/// The connection is closed.
void MachineMember::lose() {
  problem_ = connection_->problem();
  connection_.reset();
  retry_ = Clock::now() + kRetryPause;
  const bool was_admitted = std::exchange(admitted_, false);
  if (spare_ && !over_ && refusal_.empty())
    refusal_ = fmt::format("machine 0 at {} was lost ({}): it hosts the rendezvous.", place(), problem_);
  if (!was_admitted || !running_ || over_) return;
  running_ = false;
  failures_.push_back({.machine = 0,
                       .host = settings_.address,
                       .sequel = settings_.rank ? Sequel::restart : Sequel::end,
                       .text = fmt::format("was lost ({}): its launcher was killed, or cannot be reached{}", problem_,
                                           settings_.rank ? "" : ", and it hosts the rendezvous")});
}

void MachineMember::hear(const Connection::Fields& message) {
  const std::string& what = message.front();
  if (what == kGreeting && !admitted_) {
    answer_greeting(field_in(message, 1));
  } else if (what == kRefused) {
    refusal_ = fmt::format("refused by machine 0 at {}: {}", place(), field_in(message, 1));
  } else if (what == kTaken && !admitted_) {
    problem_ = fmt::format("--machine_rank {} is taken, by {}. Give each machine its own", settings_.rank.value_or(0),
                           field_in(message, 1));
    if (!taken_since_) taken_since_ = Clock::now();
    if (Clock::now() >= *taken_since_ + kTakenForGood)
      refusal_ = fmt::format("refused by machine 0 at {}: {}.", place(), problem_);
    retry_ = Clock::now() + 5 * kRetryPause;
  } else if (what == kWelcome) {
    if (secret_.given() && !secret_.proves(field_in(message, 1), {kWelcome, nonce_, hub_nonce_})) {
      refusal_ = fmt::format("who listens at {} does not know the shared secret.", place());
      return;
    }
    admitted_ = true;
    if (ready_) connection_->send({kReady});
  } else if (admitted_) {
    hear_as_member(message);
  }
}

void MachineMember::hear_as_member(const Connection::Fields& message) {
  const std::string& what = message.front();
  if (what == kStart) {
    begun_ = read_start(message);
    if (!begun_) return;
    round_ = begun_->number;
    begun_->interface = interface_of(connection_->descriptor());
    ready_ = spare_ = false;
    running_ = true;
    give_up_.reset();
  } else if (what == kSpare) {
    spare_ = true;
    give_up_.reset();
  } else if (what == kFailed && running_) {
    if (auto failure = read_failure(message, round_)) failures_.push_back(std::move(*failure));
  } else if (what == kOver) {
    over_ = true;
  } else if (what == kLeaving) {
    running_ = false;  // its end is no loss
    if (spare_) refusal_ = fmt::format("machine 0 at {} has ended the run, which had no need of this machine.", place());
  }
}

void MachineMember::answer_greeting(const std::string& nonce) {
  hub_nonce_ = nonce;
  const Hello hello = Hello::of(settings_, secret_, nonce);
  nonce_ = hello.nonce;
  connection_->send(hello.message());
}

void MachineMember::be_ready() {
  ready_ = true;
  running_ = false;
  failures_.clear();
  give_up_ = Clock::now() + settings_.patience;
  if (admitted_) connection_->send({kReady});
}

std::optional<Round> MachineMember::take_round() { return std::exchange(begun_, std::nullopt); }

std::string MachineMember::awaited() const {
  if (!admitted_)
    return fmt::format("machine 0 at {} ({}{})", place(), problem_, is_loopback(settings_.address) ? ": this host itself" : "");
  return spare_ ? fmt::format("a machine to replace: the run has its {}", settings_.count) : "the other machines";
}

void MachineMember::report(const MachineFailure& failure) {
  if (connection_ && admitted_) connection_->send(failure_message(round_, failure));  // machine 0 adds which machine and host
}

void MachineMember::report_success() {
  if (connection_ && admitted_) connection_->send({kSucceeded, std::to_string(round_)});
}

std::optional<MachineFailure> MachineMember::take_failure() {
  if (failures_.empty()) return std::nullopt;
  auto failure = std::move(failures_.front());
  failures_.pop_front();
  return failure;
}

}  // namespace accelerate::detail
