#include "elastic/machine_hub.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <set>
#include <utility>

#include "elastic/network_interface.h"
#include "elastic/rank_listener.h"

namespace accelerate::detail {
namespace {

/// Whoever has connected and does not say who it is, such as a port scanner, is dropped after so long, or when there are too
/// many.
constexpr std::chrono::seconds kIntroduction{10};
constexpr size_t kMostUnknown = 64;

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

HubListener listen_for_machines(const MachineSettings& settings) {
  const auto found = listen_for_ranks(settings.address, settings.port);
  if (found.socket) return {.socket = *found.socket};
  if (found.warning.empty()) return {};
  return {
      .socket = listen_everywhere(settings.port),
      .warning = fmt::format("--main_process_ip {} is no single address of this host: listening for the other machines at all "
                             "of its addresses, port {}.",
                             settings.address, settings.port)};
}

MachineHub::MachineHub(const MachineSettings& settings, int listener, const std::string& warning)
    : settings_(settings), secret_(RendezvousSecret::read(settings.environment)), warning_(warning), listener_(listener) {
  ::fcntl(listener_, F_SETFL, ::fcntl(listener_, F_GETFL) | O_NONBLOCK);
}

MachineHub::~MachineHub() {
  for (auto& peer : peers_) {
    if (!peer.hello) continue;
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

void MachineHub::add_to(std::vector<pollfd>& watched) const {
  watched.push_back({.fd = listener_, .events = POLLIN, .revents = 0});
  for (const auto& peer : peers_)
    watched.push_back({.fd = peer.connection.descriptor(), .events = peer.connection.events(), .revents = 0});
}

std::optional<MachineGroup::Clock::time_point> MachineHub::deadline() const {
  auto first = refusal_.empty() ? give_up_ : std::nullopt;
  if (ready_ && last_call_) first = std::min(first.value_or(*last_call_), *last_call_);
  for (const auto& peer : peers_) {
    if (!peer.hello) first = std::min(first.value_or(Clock::time_point::max()), peer.accepted + kIntroduction);
  }
  return first;
}

void MachineHub::accept_all() {
  for (;;) {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0 && errno == EINTR) continue;
    if (socket < 0) return;
    const auto unknown = std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.hello; });
    if (static_cast<size_t>(unknown) >= kMostUnknown) {
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
    if (!peer->connection.is_open() && peer->hello) lose(*peer);
    const bool is_late = !peer->hello && Clock::now() >= peer->accepted + kIntroduction;
    peer = peer->connection.is_open() && !is_late ? std::next(peer) : peers_.erase(peer);
  }
  begin_if_possible();
  if (!give_up_ || !refusal_.empty() || Clock::now() < *give_up_) return;
  refusal_ = fmt::format(
      "{} at {}:{} within {} s. Run the same launch on each machine{}, and check that this port is open.",
      numbers_machines() ? fmt::format("{} of at least {} machines have joined", ready_members().size() + 1, settings_.fewest())
                         : awaited() + " did not join",
      settings_.address, settings_.port, settings_.patience.count() / 1000,
      numbers_machines() ? "" : ", with its --machine_rank");
}

void MachineHub::hear(Peer& peer) {
  while (const auto message = peer.connection.take()) {
    const std::string what = message->front();
    if (!peer.hello) {
      if (what != kHello) continue;
      if (const auto hello = Hello::read(*message)) {
        admit(peer, *hello);
      } else {
        peer.connection.send(
            {kRefused, "it speaks another version of the launchers' protocol. Install the same version everywhere."});
      }
    } else if (what == kReady) {
      peer.ready = true;
      if (running_ && !peer.in_round) regroup_for(peer);
    } else if (what == kSucceeded && running_ && peer.in_round && number_in(*message, 1) == round_.number) {
      peer.succeeded = true;
      end_if_all_succeeded();
    } else if (what == kFailed && running_ && peer.in_round) {
      hear_failure(peer, *message);
    } else if (what == kLeaving) {
      peer.hello.reset();  // its end is no loss
      peer.machine.reset();
      peer.ready = peer.in_round = false;
    }
  }
}

void MachineHub::admit(Peer& peer, const Hello& hello) {
  const std::string reason = reason_to_refuse(hello, settings_, secret_, peer.nonce);
  if (!reason.empty()) {
    peer.connection.send({kRefused, reason});
    return;  // it leaves, or is dropped later
  }
  if (const Peer* other = hello.rank ? find(*hello.rank) : nullptr) {
    peer.connection.send({kTaken, other->hello->host});
    return;
  }
  peer.hello = hello;
  peer.machine = hello.rank;
  peer.connection.send({kWelcome, secret_.prove({kWelcome, hello.nonce, peer.nonce})});
}

const MachineHub::Peer* MachineHub::find(int machine) const {
  const auto found =
      std::find_if(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.hello && peer.machine == machine; });
  return found == peers_.end() ? nullptr : &*found;
}

void MachineHub::hear_failure(Peer& peer, const Connection::Fields& message) {
  auto failure = read_failure(message, round_.number);
  if (!failure) return;
  failure->machine = *peer.machine;
  failure->host = peer.hello->host;
  // A launcher that was told to stop leaves the group.
  failure->sequel = !failure->rank && settings_.is_elastic() ? Sequel::regroup : Sequel::restart;
  end_round(std::move(*failure));
}

void MachineHub::lose(const Peer& peer) {
  if (!running_ || over_ || !peer.in_round) return;
  end_round({.machine = *peer.machine,
             .host = peer.hello->host,
             .sequel = settings_.is_elastic() ? Sequel::regroup : Sequel::restart,
             .text = fmt::format("was lost ({}): it was killed, or cannot be reached", peer.connection.problem())});
}

/// Another machine is ready. Where fewer run than may, all ranks are started again, as Python's agents do.
void MachineHub::regroup_for(Peer& peer) {
  const bool succeeds = succeeded_ || std::any_of(peers_.begin(), peers_.end(), [](auto& each) { return each.succeeded; });
  if (!numbers_machines() || failed_by_itself_ || collective_failed_ || regroups_ || succeeds) return;
  if (round_.machines >= settings_.count) return peer.connection.send({kSpare});
  end_round({.machine = round_.machines,
             .host = peer.hello->host,
             .sequel = Sequel::regroup,
             .text = "has joined: all ranks are started again"});
}

void MachineHub::end_round(MachineFailure failure) {
  if (failure.sequel == Sequel::regroup) {
    regroups_ = true;
  } else {
    (failure.by_itself ? failed_by_itself_ : collective_failed_) = true;
  }
  tell_others(failure_message(round_.number, failure), failure.machine);
  failures_.push_back(std::move(failure));
}

void MachineHub::tell_others(const Connection::Fields& message, int but) {
  for (auto& peer : peers_) {
    if (peer.hello && peer.in_round && *peer.machine != but) peer.connection.send(message);
  }
}

void MachineHub::report(const MachineFailure& failure) {
  MachineFailure mine = failure;
  mine.machine = 0;
  mine.host = own_host();
  // Where machines are numbered as they join, nobody takes the place of the one that hosts their rendezvous.
  if (!mine.rank && numbers_machines()) mine.sequel = Sequel::end;
  (mine.by_itself ? failed_by_itself_ : collective_failed_) = true;
  tell_others(failure_message(round_.number, mine), 0);
}

void MachineHub::report_success() {
  succeeded_ = true;
  end_if_all_succeeded();
}

void MachineHub::end_if_all_succeeded() {
  const bool others =
      std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.in_round || peer.succeeded; });
  const auto count = 1 + std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.in_round; });
  if (!succeeded_ || !others || count != round_.machines) return;
  over_ = true;
  for (auto& peer : peers_) {
    if (peer.hello) peer.connection.send({kOver});
  }
}

void MachineHub::be_ready() {
  ready_ = true;
  running_ = succeeded_ = false;
  failures_.clear();
  last_call_.reset();
  give_up_ = Clock::now() + settings_.patience;
  begin_if_possible();
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
  std::vector<int> machines;
  if (running_) {
    for (const auto& peer : peers_) {
      if (peer.in_round && !peer.succeeded) machines.push_back(*peer.machine);
    }
  } else if (numbers_machines()) {
    const auto ready = 1 + std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.ready; });
    if (last_call_) return fmt::format("more machines: {} of at most {} have joined", ready, settings_.count);
    return fmt::format(
        "other machines: {} of at least {} have joined{}", ready, settings_.fewest(),
        is_loopback(settings_.address) ? fmt::format(" ({} is reached from this host alone)", settings_.address) : "");
  } else {
    machines = missing();
  }
  if (machines.empty()) return "";
  return fmt::format("machine{} {}", machines.size() == 1 ? "" : "s", fmt::join(machines, ", "));
}

/// Those of the round before come first, in their order.
std::vector<MachineHub::Peer*> MachineHub::ready_members() {
  std::vector<Peer*> members;
  for (auto& peer : peers_) {
    if (peer.hello && peer.ready) members.push_back(&peer);
  }
  const auto place = [](const Peer* peer) { return peer->machine.value_or(std::numeric_limits<int>::max()); };
  std::stable_sort(members.begin(), members.end(), [&](const Peer* a, const Peer* b) { return place(a) < place(b); });
  members.resize(std::min(members.size(), static_cast<size_t>(settings_.count - 1)));
  return members;
}

/// Whether fewer machines than there may be are to wait: for those that suffice, or for the last call.
bool MachineHub::wait_for_more(size_t machines) {
  if (static_cast<int>(machines) < settings_.fewest()) {
    last_call_.reset();
    return true;
  }
  if (!last_call_) last_call_ = Clock::now() + settings_.last_call;
  return Clock::now() < *last_call_;
}

void MachineHub::begin_if_possible() {
  // Ranks of the round before that still end may be saving what the next ones load.
  const bool someone_ends = std::any_of(peers_.begin(), peers_.end(), [](auto& peer) { return peer.in_round && !peer.ready; });
  if (!ready_ || someone_ends) return;
  const auto members = ready_members();
  const size_t machines = members.size() + 1;
  if (static_cast<int>(machines) < settings_.count && wait_for_more(machines)) return;
  begin(members);
}

void MachineHub::begin(const std::vector<Peer*>& members) {
  ready_ = false;
  running_ = true;
  give_up_.reset();
  for (auto& peer : peers_) {
    peer.in_round = peer.succeeded = false;
    if (numbers_machines()) peer.machine.reset();
  }
  const bool is_restart = failed_by_itself_ || (collective_failed_ && !regroups_);
  failed_by_itself_ = collective_failed_ = regroups_ = false;
  round_ = {.number = round_.number + 1,
            .restarts = round_.restarts + (is_restart ? 1 : 0),
            .port = settings_.reserve_port(),
            .machines = static_cast<int>(members.size()) + 1,
            .world_size = settings_.processes};
  for (const Peer* peer : members) round_.world_size += peer->hello->processes;
  Round place = round_;
  place.first_rank = settings_.processes;
  for (Peer* peer : members) {
    ++place.machine;
    peer->machine = place.machine;
    peer->ready = false;
    peer->in_round = true;
    peer->connection.send(start_message(place));
    place.first_rank += peer->hello->processes;
  }
  for (auto& peer : peers_) {
    if (peer.hello && peer.ready) peer.connection.send({kSpare});
  }
  begun_ = round_;
  begun_->interface = interface_to(members);
}

/// Machines on this host, by its loopback interface, do not count beside others.
std::string MachineHub::interface_to(const std::vector<Peer*>& members) {
  std::set<std::string> found;
  for (const Peer* peer : members) found.insert(interface_of(peer->connection.descriptor()));
  if (found.size() > 1) found.erase("lo");
  return found.size() == 1 ? *found.begin() : "";
}

std::optional<Round> MachineHub::take_round() { return std::exchange(begun_, std::nullopt); }

std::optional<MachineFailure> MachineHub::take_failure() {
  if (failures_.empty()) return std::nullopt;
  auto failure = std::move(failures_.front());
  failures_.pop_front();
  return failure;
}

}  // namespace accelerate::detail
