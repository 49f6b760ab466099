#include "rendezvous/rendezvous.h"

#include <accelerate/core/error.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "console/screen.h"
#include "elastic/connection.h"
#include "elastic/rank_listener.h"
#include "elastic/rendezvous_secret.h"
#include "rendezvous/bounded.h"
#include "rendezvous/rank_card.h"
#include "rendezvous/refused_ranks.h"

namespace accelerate::detail {
namespace {

using Clock = std::chrono::steady_clock;
using StorePointer = c10::intrusive_ptr<c10d::Store>;

/// Between attempts to reach rank 0, so that a server that refuses at once is not besieged.
constexpr std::chrono::milliseconds kRetryPause{50};
/// Rank 0 looks for the other ranks again and again rather than to wait in the store: c10d logs every wait that ends without its
/// keys, and there is something else to look for. The longer it has waited the longer it sleeps, within these bounds.
constexpr std::chrono::microseconds kShortestSleep{50}, kLongestSleep{2000};
constexpr std::chrono::milliseconds kLookForRefusals{200};

/// What a rank needs for the rendezvous. Copied into threads that may be left behind.
struct Attendance {
  LaunchEnvironment me;
  /// Prefix of the keys of this group, whichever process hosts it.
  std::string prefix;
  RendezvousSecret secret;
  RankCard card;
  std::chrono::milliseconds patience;
  Clock::time_point deadline;
  WaitNotices notices;

  std::chrono::milliseconds left() const {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()), kRetryPause);
  }
};

/// Ranks of one host meet on its loopback interface, whatever its name resolves to. An agent listens where it wants to.
std::string store_address(const LaunchEnvironment& me) {
  return on_one_host(me) && !me.agent_hosts_store ? "127.0.0.1" : me.master_address;
}

std::string place(const LaunchEnvironment& me) {
  return store_address(me) + ":" + std::to_string(me.master_port) + " (MASTER_ADDR and MASTER_PORT)";
}

/// Groups made one after the other in one process share an address and must not see each other's keys: each has the
/// number of groups this rank has made there before, which is the same on every rank that makes them in the same order. A copy
/// of the process (fork) begins anew.
struct Generations {
  struct Entry {
    int made = 0;
    /// The same at each attempt: a rank that tries again is no second claimant.
    std::string nonce = make_nonce();
  };
  std::mutex mutex;
  std::map<std::tuple<pid_t, std::string, int, int>, Entry> entries;

  static Generations& of_process() {
    static Generations generations;
    return generations;
  }
  Entry& of(const LaunchEnvironment& me) { return entries[{::getpid(), store_address(me), me.master_port, me.process_index}]; }
};

Generations::Entry generation_of(const LaunchEnvironment& me) {
  auto& generations = Generations::of_process();
  const std::lock_guard lock(generations.mutex);
  return generations.of(me);
}

/// c10d retries an unknown host until its time-out; a name that does not resolve is better reported at once.
void check_address(const LaunchEnvironment& me) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(store_address(me).c_str(), nullptr, &hints, &found);
  if (found) freeaddrinfo(found);
  if (error != 0) {
    throw ConfigError("MASTER_ADDR=" + me.master_address + " cannot be resolved (" + gai_strerror(error) +
                      "): set it to a host name or IP address of rank 0 that every host can resolve.");
  }
}

c10d::TCPStoreOptions store_options(const LaunchEnvironment& me, bool server, std::chrono::milliseconds patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(me.master_port);
  options.isServer = server;
  options.numWorkers = static_cast<size_t>(me.num_processes);
  options.waitWorkers = false;
  options.timeout = patience;
  // A second accelerator of this process joins the server that the first one started.
  options.multiTenant = true;
  return options;
}

StorePointer connect(const LaunchEnvironment& me, std::chrono::milliseconds patience) {
  return c10::make_intrusive<c10d::TCPStore>(store_address(me), store_options(me, false, patience));
}

StorePointer host_store(const LaunchEnvironment& me, std::chrono::milliseconds patience) {
  const StoreListener listener = listen_for_ranks(store_address(me), me.master_port);
  if (!listener.warning.empty()) Screen::of_process().write_line(2, "accelerate: " + listener.warning);
  auto options = store_options(me, true, patience);
  options.masterListenFd = listener.socket;
  try {
    return c10::make_intrusive<c10d::TCPStore>(listener.reached_at, options);
  } catch (const std::exception& error) {
    const std::string text = words_of(error);
    if (text.find("EADDRINUSE") != std::string::npos || text.find("ddress already in use") != std::string::npos) {
      throw ConfigError("MASTER_PORT=" + std::to_string(me.master_port) +
                        " is already in use on this host, where rank 0 must listen: set MASTER_PORT to a free port, or let "
                        "`accelerate launch --main_process_port 0` choose one.");
    }
    throw DistributedError("Rank 0 could not listen at " + place(me) + ": " + text);
  }
}

std::vector<uint8_t> as_value(const std::string& text) { return {text.begin(), text.end()}; }
std::string as_text(const std::vector<uint8_t>& value) { return {value.begin(), value.end()}; }

StorePointer below(const StorePointer& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

std::string claim_key(int rank) { return "claim/" + std::to_string(rank); }

std::vector<std::string> claim_keys(const LaunchEnvironment& me) {
  std::vector<std::string> keys;
  for (int rank = 1; rank < me.num_processes; ++rank) keys.push_back(claim_key(rank));
  return keys;
}

std::string missing_ranks(const Attendance& mine, c10d::Store& round) {
  std::string missing;
  for (int rank = 1; rank < mine.me.num_processes; ++rank) {
    if (!round.check({claim_key(rank)})) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  }
  return missing;
}

[[noreturn]] void tell_missing(const Attendance& mine, c10d::Store& round) {
  const std::string missing = missing_ranks(mine, round);
  throw DistributedError(rank_of(mine.me) + " could not connect to its peers: these ranks did not join within " +
                         std::to_string(mine.patience.count() / 1000) +
                         " s: " + (missing.empty() ? "none, but some joined too late" : missing) +
                         ". Start all of them, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE.");
}

// --- Rank 0: offers its job, waits until every other rank is claimed, and admits them.
// ------------------------------------------

/// What each rank claimed. Without a secret that need not be known: a rank that claims has compared the jobs itself.
std::string checked_claims(const Attendance& mine, const std::string& offer, c10d::Store& round) {
  std::string all;
  if (!mine.secret.given()) return all;
  const auto claims = round.multiGet(claim_keys(mine.me));
  for (size_t i = 0; i < claims.size(); ++i) {
    const auto card = RankCard::parse(as_text(claims[i]));
    auto unproved = card.value_or(RankCard());
    unproved.proof.clear();
    if (!card || card->rank != static_cast<int>(i) + 1 || !mine.secret.proves(card->proof, {"claim", offer, unproved.to_text()}))
      throw DistributedError("Rank " + std::to_string(i + 1) + " was claimed at " + place(mine.me) +
                             " by a process that failed authentication with the shared secret: the job does not start.");
    all += card->to_text() + "\n";
  }
  return all;
}

void await_claims(const Attendance& mine, c10d::Store& round) {
  const auto claimed = claim_keys(mine.me);
  const auto began = Clock::now();
  auto look_for_refusals = began + kLookForRefusals;
  auto notices = mine.notices;
  while (!round.check(claimed)) {
    const auto now = Clock::now();
    notices.tell_if_due(rank_of(mine.me),
                        [&] { return "at " + place(mine.me) + " for these ranks: " + missing_ranks(mine, round) + "."; });
    if (now >= mine.deadline) tell_missing(mine, round);
    if (now >= look_for_refusals) {
      tell_refusals(round);
      look_for_refusals = now + kLookForRefusals;
    }
    std::this_thread::sleep_for(std::clamp<Clock::duration>((now - began) / 8, kShortestSleep, kLongestSleep));
  }
}

StorePointer host_round(const Attendance& mine, const StorePointer& tcp) {
  auto card = mine.card;
  card.proof = mine.secret.prove({"offer", mine.prefix, card.to_text()});
  const std::string offer = card.to_text();
  const auto group = below(tcp, mine.prefix), round = below(tcp, mine.prefix + "/" + card.nonce);
  group->set("host", as_value(offer));
  await_claims(mine, *round);
  const std::string claims = checked_claims(mine, offer, *round);
  round->set("admitted", as_value("yes" + mine.secret.prove({"admitted", offer, claims})));
  tell_refusals(*round);
  return round;
}

// --- The others: compare their job with rank 0's, claim their rank, and wait to be admitted. -----------------------------------

/// Why rank 0 would not have us, and what to do about it; empty when it would.
std::string reason_to_refuse(const Attendance& mine, const RankCard& offer) {
  if (!same_job(mine.card, offer)) {
    return "rank 0 there belongs to another job: " + describe(offer) +
           ". Give each job its own MASTER_PORT, and all ranks of a job the same WORLD_SIZE and ACCELERATE_RUN_ID. Without a run "
           "id, all ranks must run a program of the same name.";
  }
  constexpr const char* remedy = " Give all ranks the same ACCELERATE_RENDEZVOUS_SECRET or ACCELERATE_RENDEZVOUS_SECRET_FILE.";
  auto unproved = offer;
  unproved.proof.clear();
  if (offer.proof.empty() && mine.secret.given())
    return std::string("rank 0 has no shared secret, but this rank has one.") + remedy;
  if (!offer.proof.empty() && !mine.secret.given())
    return std::string("rank 0 has a shared secret, but this rank has none.") + remedy;
  if (!mine.secret.proves(offer.proof, {"offer", mine.prefix, unproved.to_text()}))
    return std::string("the shared secret of this rank differs from that of rank 0.") + remedy;
  return "";
}

/// What is there may be left from before, and then the right one is waited for: an agent keeps the keys of the workers that it
/// replaces, and a rank 0 that ends serves until the last of its ranks has ended, while we are the successor of one that has.
[[noreturn]] void refuse(const Attendance& mine, c10d::Store& round, const std::string& reason) {
  const std::string text = describe(mine.card) + " was refused at " + place(mine.me) + ": " + reason;
  if (mine.me.agent_hosts_store || round.check({"end/" + std::to_string(mine.me.process_index)})) throw std::runtime_error(text);
  publish_refusal(round, text);
  throw ConfigError("R" + text.substr(1));
}

void claim_rank(const Attendance& mine, const std::string& offer, c10d::Store& round) {
  auto card = mine.card;
  card.proof = mine.secret.prove({"claim", offer, card.to_text()});
  const std::string claim = card.to_text();
  const std::string held = as_text(round.compareSet(claim_key(card.rank), {}, as_value(claim)));
  if (held == claim) return;
  const auto holder = RankCard::parse(held);
  refuse(mine, round,
         "that rank is already claimed" + (holder ? ", by " + describe(*holder) : "") +
             ". Give every process a distinct RANK, and each job its own MASTER_PORT. If that process has died, restart all "
             "ranks of the job.");
}

void await_admission(const Attendance& mine, const std::string& offer, c10d::Store& group, c10d::Store& round) {
  // Where an agent hosts the store, workers that it replaces may have left an offer, and the new rank 0 waits for us elsewhere.
  while (mine.me.agent_hosts_store && !round.check({"admitted"}) && Clock::now() < mine.deadline) {
    if (as_text(group.get("host")) != offer) throw std::runtime_error("Rank 0 was replaced.");
    std::this_thread::sleep_for(kRetryPause);
  }
  try {
    round.wait({"admitted"}, mine.left());
  } catch (const std::exception&) {
    if (Clock::now() >= mine.deadline) tell_missing(mine, round);
    throw;
  }
}

/// That rank 0 knows the secret too: what it showed first may have been another's.
void check_admission(const Attendance& mine, const std::string& offer, c10d::Store& round) {
  if (!mine.secret.given()) return;
  std::string claims;
  for (const auto& claim : round.multiGet(claim_keys(mine.me))) claims += as_text(claim) + "\n";
  const std::string answer = as_text(round.get("admitted"));
  if (!answer.starts_with("yes") || !mine.secret.proves(answer.substr(3), {"admitted", offer, claims}))
    throw ConfigError(rank_of(mine.me) + " found a process at " + place(mine.me) +
                      " that failed authentication with the shared secret: check which process listens there.");
}

/// One attempt to reach rank 0's store and to be admitted. While rank 0 ends an earlier group its old server may still answer and
/// then go away: that attempt fails, and the next one finds the new server.
StorePointer join_round(const Attendance& mine) {
  const auto tcp = connect(mine.me, mine.left());
  const auto group = below(tcp, mine.prefix);
  const std::string offer = as_text(group->get("host"));
  const auto host = RankCard::parse(offer);
  if (!host) throw ConfigError(rank_of(mine.me) + " found no rank 0 with this version of the library at " + place(mine.me) + ".");
  const auto round = below(tcp, mine.prefix + "/" + host->nonce);
  if (const std::string reason = reason_to_refuse(mine, *host); !reason.empty()) refuse(mine, *round, reason);
  claim_rank(mine, offer, *round);
  await_admission(mine, offer, *group, *round);
  check_admission(mine, offer, *round);
  return round;
}

constexpr const char* kSilence = "No store of rank 0 answered there.";

/// What a rank waits for that is not admitted yet.
std::string awaited_of(const LaunchEnvironment& me) {
  const std::string problem = connection_problem(store_address(me), me.master_port, std::chrono::seconds(3));
  if (problem.empty()) return "to be admitted by rank 0 at " + place(me) + ", which answers: it waits for other ranks.";
  return "for rank 0 at " + place(me) + ": " + problem + ".";
}

StorePointer find_round(const Attendance& mine) {
  auto notices = mine.notices;
  const auto notice = [&] { notices.tell_if_due(rank_of(mine.me), [&] { return awaited_of(mine.me); }); };
  for (;;) {
    try {
      return within(
          mine.left() + 2 * kRetryPause, kSilence, [mine] { return join_round(mine); }, notice);
    } catch (const Error&) {
      throw;  // it will not get better
    } catch (const std::exception& error) {
      if (Clock::now() + kRetryPause < mine.deadline) {
        notice();
        std::this_thread::sleep_for(kRetryPause);
        continue;
      }
      throw DistributedError(
          rank_of(mine.me) + " did not find rank 0 at " + place(mine.me) + " within " +
          std::to_string(static_cast<double>(mine.patience.count()) / 1000.0).substr(0, 5) +
          " s: start all ranks, and check that the address is that of rank 0's host and that the port is open. " +
          words_of(error));
    }
  }
}

}  // namespace

void note_group_made(const LaunchEnvironment& me) {
  auto& generations = Generations::of_process();
  const std::lock_guard lock(generations.mutex);
  ++generations.of(me).made;
}

std::string rank_of(const LaunchEnvironment& me) {
  return "Rank " + std::to_string(me.process_index) + " of " + std::to_string(me.num_processes);
}

StorePointer join_store(const LaunchEnvironment& me, const Environment& environment, std::chrono::milliseconds patience,
                        WaitNotices notices) {
  const auto generation = generation_of(me);
  Attendance mine{.me = me,
                  .prefix = "accelerate/" + std::to_string(me.restart_count) + "/" + std::to_string(generation.made),
                  .secret = RendezvousSecret::read(environment),
                  .card = RankCard::of_this_process(me, me.process_index == 0 ? make_nonce() : generation.nonce),
                  .patience = patience,
                  .deadline = Clock::now() + patience,
                  .notices = notices};
  // Nobody to find: no port is opened, none can be in use.
  if (me.num_processes == 1) return below(c10::make_intrusive<c10d::HashStore>(), mine.prefix);
  check_address(me);
  if (me.process_index != 0) return find_round(mine);
  const auto tcp = me.agent_hosts_store ? within(patience + kRetryPause, kSilence, [=] { return connect(me, patience); })
                                        : host_store(me, patience);
  return within(patience + std::chrono::seconds(1), "The rendezvous store does not answer.",
                [mine, tcp] { return host_round(mine, tcp); });
}

}  // namespace accelerate::detail
