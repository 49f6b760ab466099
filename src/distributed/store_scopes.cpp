#include "distributed/store_scopes.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "distributed/detective.h"
#include "distributed/failure_policy.h"
#include "rendezvous/bounded.h"

namespace accelerate::detail {
namespace {

/// How long the process that serves the store waits at its end for the others to reach theirs.
constexpr std::chrono::seconds kHostPatience{30};
/// And how often it looks whether there is anybody left to wait for.
constexpr std::chrono::milliseconds kHostLook{500};

/// How long a rank that waits for a key sleeps before it looks again: at first, and at most.
constexpr std::chrono::microseconds kFirstPause{500}, kLongestPause{20000};

/// Set by a rank as the last thing it does with the store.
std::string end_key(int rank) { return "end/" + std::to_string(rank); }

}  // namespace

std::string StoreScopes::enter(const char* call, const std::string& prefix, bool goes_first, int first,
                               std::source_location where) {
  if (!store_) {
    throw UsageError(std::string(call) + " needs a store, but the given process group has none: construct it with one.");
  }
  std::string key = prefix + std::to_string(entered_++);
  if (goes_first) {
    failures_.guarded({.name = call, .where = where}, [](int64_t) {});  // written down, though there is nothing to wait for
  } else {
    wait_for(key, first, call, where);
  }
  return key;
}

void StoreScopes::signal(const std::string& key, const std::string& value) noexcept {
  try {
    if (!store_) return;
    store_->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    // LibTorch sends a value and returns: once it answers a question, the value has arrived, for all who ask after this.
    store_->check({key});
  } catch (const std::exception&) {
    // The store is gone with its host: ranks that wait for the key learn that from the store itself.
  }
}

void StoreScopes::end(int rank, const std::string& last_report) noexcept {
  try {
    if (!store_ || (failures_.detective() && failures_.detective()->store_is_lost())) return;
    // The one message without a question behind it: a host that has it from all may be gone before it answers, and so may
    // a host that an exception ends. LibTorch prints stack frames then.
    store_->set(end_key(rank), std::vector<uint8_t>(last_report.begin(), last_report.end()));
  } catch (const std::exception&) {
    // The host is gone: nobody waits for this rank.
  }
}

void StoreScopes::wait_for(const std::string& key, int from, const char* call, std::source_location where) {
  NoHostCollectives::check();
  failures_.guarded({.name = call, .where = where}, [&](int64_t) {
    // Looks at the processes first: a client that meets a dead host fills the screen with stack frames.
    const auto poll = [key, from, store = store_, detective = failures_.detective(), limit = timeout_] {
      const auto deadline = std::chrono::steady_clock::now() + limit;
      for (auto pause = kFirstPause; std::chrono::steady_clock::now() < deadline; pause = std::min(2 * pause, kLongestPause)) {
        // Asked before the key, which is set before leaving. Who else is lost does not matter to a scope that is open.
        const bool lost = detective && (detective->is_lost() || detective->has_left(from));
        const bool host_lost = detective && detective->store_is_lost();
        if (!host_lost && store->check({key})) return;
        if (lost) throw std::runtime_error("The scope cannot be entered: the process group is lost.");
        std::this_thread::sleep_for(pause);
      }
      throw std::runtime_error("Timed out after " + std::to_string(limit.count()) + " ms.");
    };
    within(timeout_ + std::chrono::seconds(1), "Timed out: the store that rank 0 hosts does not answer.", poll);
  });
}

void StoreScopes::serve_until_all_have_ended(int size) noexcept {
  std::vector<std::string> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(end_key(rank));
  const auto deadline = std::chrono::steady_clock::now() + kHostPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      return store_->wait(all, kHostLook);
    } catch (const std::exception&) {
      // Not yet. A dead rank will never set it.
      if (failures_.detective() && failures_.detective()->nobody_is_left()) return;
    }
  }
}

}  // namespace accelerate::detail
