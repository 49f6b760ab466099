#include "elastic/machine_hub.h"

#include <accelerate/core/error.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "elastic/machine_messages.h"
#include "elastic/rank_listener.h"

namespace accelerate::detail {
namespace {

/// Whoever has connected and does not say who it is, such as a port scanner, is dropped after so long, or when there are too
/// many.
constexpr std::chrono::seconds kIntroduction{10};
constexpr size_t kMostStrangers = 64;

/// A socket at all addresses of this host, or -1.
int listen_everywhere(int port) {
  const int six = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1, off = 0;
  if (six >= 0) {
    ::setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    ::setsockopt(six, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    if (::bind(six, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 && ::listen(six, SOMAXCONN) == 0) return six;
    ::close(six);
    if (errno == EADDRINUSE) return -1;
  }
  const int four = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::setsockopt(four, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = htons(static_cast<uint16_t>(port));
  if (::bind(four, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 && ::listen(four, SOMAXCONN) == 0) return four;
  ::close(four);
  return -1;
}

}  // namespace

MachineHub::MachineHub(const MachineSettings& settings)
    : settings_(settings), secret_(RendezvousSecret::read(settings.environment)) {
  listen();
}

MachineHub::~MachineHub() {
  for (auto& peer : peers_) {
    if (!peer.machine) continue;
    peer.connection.send({kLeaving});
    peer.connection.flush();
  }
  if (listener_ >= 0) ::close(listener_);
}

void MachineHub::release() {
  peers_.clear();
  if (listener_ >= 0) ::close(listener_);
  listener_ = -1;
}

void MachineHub::listen() {
  auto found = listen_for_ranks(settings_.address, settings_.port);
  listener_ = found.socket ? *found.socket : -1;
  if (listener_ < 0 && !found.warning.empty()) {
    listener_ = listen_everywhere(settings_.port);
    warning_ = fmt::format(
        "--main_process_ip {} is no single address of this host: listening for the other machines at all of its addresses, port "
        "{}.",
        settings_.address, settings_.port);
  }
  if (listener_ < 0)
    throw DistributedError(
        fmt::format("Cannot listen for the other machines at {}:{}: {}. Give a free port as --main_process_port.",
                    settings_.address, settings_.port, std::strerror(errno)));
  ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
}

void MachineHub::add_to(std::vector<pollfd>& watched) const {
  watched.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  for (const auto& peer : peers_)
    watched.push_back({.fd = peer.connection.descriptor(), .events = peer.connection.events(), .revents = 0});
}

std::optional<MachineGroup::Clock::time_point> MachineHub::deadline() const {
  auto first = refusal_.empty() ? give_up_ : std::nullopt;
  for (const auto& peer : peers_) {
    if (!peer.machine) first = std::min(first.value_or(Clock::time_point::max()), peer.accepted + kIntroduction);
  }
  return first;
}

void MachineHub::accept_all() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0 && errno == EINTR) continue;
    if (socket < 0) return;
    const auto strangers = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.machine; });
    if (static_cast<size_t>(strangers) >= kMostStrangers) {
      ::close(socket);
      continue;
    }
    peers_.push_back({.connection = Connection(socket), .nonce = make_nonce()});
    peers_.back().connection.send({kGreeting, peers_.back().nonce});
  }
}

void MachineHub::serve() {
  accept_all();
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    peer->connection.serve();
    hear(*peer);
    if (!peer->connection.is_open() && peer->machine) lose(*peer);
    const bool is_late = !peer->machine && Clock::now() >= peer->accepted + kIntroduction;
    peer = peer->connection.is_open() && !is_late ? std::next(peer) : peers_.erase(peer);
  }
  begin_if_all_ready();
  if (give_up_ && refusal_.empty() && Clock::now() >= *give_up_)
    refusal_ = fmt::format(
        "{} did not join at {}:{} within {} s. Run the same launch on each machine, with its --machine_rank, and check that this "
        "port is open.",
        awaited(), settings_.address, settings_.port, settings_.patience.count() / 1000);
}

void MachineHub::hear(Peer& peer) {
  while (const auto message = peer.connection.take()) {
    const std::string what = message->front();
    if (!peer.machine) {
      if (what == kHello) admit(peer, *message);
      continue;
    }
    if (what == kReady) {
      peer.ready = true;
    } else if (what == kSucceeded && running_ && number_in(*message, 1) == round_) {
      peer.succeeded = true;
      end_if_all_succeeded();
    } else if (what == kFailed) {
      if (auto failure = read_failure(*message, round_); failure && running_) {
        failure->machine = *peer.machine;
        failure->host = peer.host;
        pass_on(*failure);
        failures_.push_back(std::move(*failure));
      }
    } else if (what == kLeaving) {
      peer.machine.reset();  // its end is no loss
    }
  }
}

std::string MachineHub::reason_to_refuse(const Peer& peer, const Connection::Fields& hello) const {
  if (hello.size() != 9) return "it speaks another version of this protocol. Install the same version everywhere.";
  if (hello[1] != settings_.job)
    return fmt::format("machine 0 there launches another job ({}, not {}). Give each job a --main_process_port of its own.",
                       settings_.job, hello[1]);
  if (number_in(hello, 2) != settings_.count)
    return fmt::format("machine 0 was launched with --num_machines {}, this one with {}.", settings_.count, hello[2]);
  if (number_in(hello, 5) != settings_.processes)
    return fmt::format("machine 0 starts {} processes, this one {}. Give all machines the same --num_processes.",
                       settings_.processes, hello[5]);
  if (number_in(hello, 6) != settings_.max_restarts)
    return fmt::format("machine 0 was launched with --max_restarts {}, this one with {}.", settings_.max_restarts, hello[6]);
  const auto machine = number_in(hello, 3);
  if (!machine || *machine == 0 || *machine >= settings_.count)
    return fmt::format("--machine_rank {} is not one of 1 to {}.", hello[3], settings_.count - 1);
  if (secret_.given() == hello[8].empty())
    return secret_.given() ? "machine 0 has a shared secret, this one has none."
                           : "machine 0 has no shared secret, this one has one.";
  if (secret_.given() && !secret_.proves(hello[8], {kHello, peer.nonce, hello[1], hello[2], hello[3], hello[7]}))
    return "its shared secret differs from that of machine 0.";
  return "";
}

void MachineHub::admit(Peer& peer, const Connection::Fields& hello) {
  const std::string reason = reason_to_refuse(peer, hello);
  if (!reason.empty()) {
    peer.connection.send({kRefused, reason});
    return;  // it leaves, or is dropped later
  }
  if (const Peer* other = find(*number_in(hello, 3))) {
    peer.connection.send({kTaken, other->host});
    return;
  }
  peer.machine = number_in(hello, 3);
  peer.host = hello[4];
  peer.connection.send({kWelcome, secret_.prove({kWelcome, hello[7], peer.nonce})});
}

const MachineHub::Peer* MachineHub::find(int machine) const {
  const auto found = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.machine == machine; });
  return found == peers_.end() ? nullptr : &*found;
}

void MachineHub::lose(const Peer& peer) {
  if (!running_ || over_) return;
  const MachineFailure failure{
      .machine = *peer.machine,
      .host = peer.host,
      .text = fmt::format("was lost ({}): it was killed, or cannot be reached", peer.connection.problem())};
  pass_on(failure);
  failures_.push_back(failure);
}

void MachineHub::tell_all(const Connection::Fields& message, int but) {
  for (auto& peer : peers_) {
    if (peer.machine && *peer.machine != but) peer.connection.send(message);
  }
}

void MachineHub::pass_on(const MachineFailure& failure) { tell_all(failure_message(round_, failure), failure.machine); }

void MachineHub::report(const MachineFailure& failure) {
  MachineFailure mine = failure;
  mine.machine = 0;
  mine.host = own_host();
  pass_on(mine);
}

void MachineHub::report_success() {
  succeeded_ = true;
  end_if_all_succeeded();
}

void MachineHub::end_if_all_succeeded() {
  const auto count = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.machine && peer.succeeded; });
  if (!succeeded_ || count + 1 != settings_.count) return;
  over_ = true;
  tell_all({kOver}, 0);
}

void MachineHub::be_ready() {
  ready_ = true;
  running_ = succeeded_ = false;
  failures_.clear();
  for (auto& peer : peers_) peer.succeeded = false;
  give_up_ = Clock::now() + settings_.patience;
  begin_if_all_ready();
}

std::vector<int> MachineHub::missing() const {
  std::vector<int> missing;
  for (int machine = 1; machine < settings_.count; ++machine) {
    const Peer* peer = find(machine);
    if (peer == nullptr || !peer->ready) missing.push_back(machine);
  }
  return missing;
}

std::string MachineHub::awaited() const {
  auto machines = missing();
  if (running_) {
    machines.clear();
    for (const auto& peer : peers_) {
      if (peer.machine && !peer.succeeded) machines.push_back(*peer.machine);
    }
  }
  if (machines.empty()) return "";
  return fmt::format("machine{} {}", machines.size() == 1 ? "" : "s", fmt::join(machines, ", "));
}

void MachineHub::begin_if_all_ready() {
  if (!ready_ || !missing().empty()) return;
  ready_ = false;
  running_ = true;
  give_up_.reset();
  for (auto& peer : peers_) peer.ready = false;
  begun_ = Round{.number = ++round_, .port = settings_.reserve_port()};
  tell_all({kStart, std::to_string(begun_->number), std::to_string(begun_->port)}, 0);
}

std::optional<Round> MachineHub::take_round() { return std::exchange(begun_, std::nullopt); }

std::optional<MachineFailure> MachineHub::take_failure() {
  if (failures_.empty()) return std::nullopt;
  auto failure = std::move(failures_.front());
  failures_.pop_front();
  return failure;
}

}  // namespace accelerate::detail
