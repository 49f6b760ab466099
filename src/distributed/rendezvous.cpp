#include "distributed/rendezvous.h"

#include <accelerate/core/error.h>
#include <netdb.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "distributed/bounded.h"

namespace accelerate {
namespace {

using Clock = std::chrono::steady_clock;

/// Between attempts to reach rank 0, so that a server that refuses at once is not besieged.
constexpr std::chrono::milliseconds kRetryPause{50};

std::string place(const LaunchEnvironment& me) { return me.master_address + ":" + std::to_string(me.master_port); }

/// Groups made one after the other in one process share an address and must not see each other's keys: each has the
/// number of groups this rank has made there before, which is the same on every rank that makes them in the same order. A copy
/// of the process (fork) begins anew.
struct Generations {
  std::mutex mutex;
  std::map<std::tuple<pid_t, std::string, int, int>, int> made;

  static Generations& of_process() {
    static Generations generations;
    return generations;
  }
  int& of(const LaunchEnvironment& me) { return made[{::getpid(), me.master_address, me.master_port, me.process_index}]; }
};

int generation_of(const LaunchEnvironment& me) {
  auto& generations = Generations::of_process();
  const std::lock_guard lock(generations.mutex);
  return generations.of(me);
}

/// c10d retries an unknown host until its time-out; a name that means nothing now is better told at once.
void check_address(const LaunchEnvironment& me) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(me.master_address.c_str(), nullptr, &hints, &found);
  if (found) freeaddrinfo(found);
  if (error != 0) {
    throw ConfigError("MASTER_ADDR=" + me.master_address + " cannot be resolved (" + gai_strerror(error) +
                      "): set it to the name or address of the machine that runs rank 0, as every machine knows it.");
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

c10::intrusive_ptr<c10d::Store> connect(const LaunchEnvironment& me, std::chrono::milliseconds patience) {
  return c10::make_intrusive<c10d::TCPStore>(me.master_address, store_options(me, false, patience));
}

c10::intrusive_ptr<c10d::Store> host_store(const LaunchEnvironment& me, std::chrono::milliseconds patience) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(me.master_address, store_options(me, true, patience));
  } catch (const std::exception& error) {
    const std::string text = words_of(error);
    if (text.find("EADDRINUSE") != std::string::npos || text.find("ddress already in use") != std::string::npos) {
      throw ConfigError("MASTER_PORT=" + std::to_string(me.master_port) +
                        " is in use on this machine, and rank 0 must listen there: set MASTER_PORT to a "
                        "free port, or let `accelerate launch --main_process_port 0` choose one.");
    }
    throw DistributedError("Rank 0 could not listen at " + place(me) + " (MASTER_ADDR and MASTER_PORT): " + text);
  }
}

/// One attempt to reach rank 0's store and to see it serve this generation. While rank 0 ends an earlier group its old
/// server may still answer and then go away: that attempt fails, and the next one finds the new server.
c10::intrusive_ptr<c10d::Store> find_store(const LaunchEnvironment& me, const std::string& prefix,
                                           std::chrono::milliseconds patience) {
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, connect(me, patience));
  store->wait({"host"}, patience);
  return store;
}

constexpr const char* kSilence = "Nothing there answered as rank 0 would.";

}  // namespace

void note_group_made(const LaunchEnvironment& me) {
  auto& generations = Generations::of_process();
  const std::lock_guard lock(generations.mutex);
  ++generations.of(me);
}

c10::intrusive_ptr<c10d::Store> join_store(const LaunchEnvironment& me, std::chrono::milliseconds patience) {
  const std::string prefix = "accelerate/" + std::to_string(me.restart_count) + "/" + std::to_string(generation_of(me));
  // Nobody to find: no port is opened, none can be in use.
  if (me.num_processes == 1) return c10::make_intrusive<c10d::PrefixStore>(prefix, c10::make_intrusive<c10d::HashStore>());
  check_address(me);
  const auto deadline = Clock::now() + patience;
  if (me.process_index == 0) {
    auto tcp = me.agent_hosts_store ? within(patience + kRetryPause, kSilence, [=] { return connect(me, patience); })
                                    : host_store(me, patience);
    auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, tcp);
    store->set("host", std::vector<uint8_t>{1});
    return store;
  }
  for (;;) {
    const auto left = std::max(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()), kRetryPause);
    try {
      return within(left + kRetryPause, kSilence, [=] { return find_store(me, prefix, left); });
    } catch (const std::exception& error) {
      if (Clock::now() + kRetryPause < deadline) {
        std::this_thread::sleep_for(kRetryPause);
        continue;
      }
      throw DistributedError(
          "Rank " + std::to_string(me.process_index) + " of " + std::to_string(me.num_processes) + " did not find rank 0 at " +
          place(me) + " (MASTER_ADDR and MASTER_PORT) within " + std::to_string(patience.count() / 1000.0).substr(0, 5) +
          " s: start all processes, and check that the address is that of rank 0's machine and that the port is open. " +
          words_of(error));
    }
  }
}

}  // namespace accelerate
