#pragma once

#include <atomic>
#include <chrono>
#include <source_location>
#include <string>

#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

class FailurePolicy;

/// The order in which ranks enter scopes and leave the group, by keys in the rendezvous store.
class StoreScopes {
 public:
  /// `store` may be null for a group of the application's own.
  StoreScopes(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds timeout, FailurePolicy& failures)
      : store_(std::move(store)), timeout_(timeout), failures_(failures) {}

  /// Enters the next scope: at once when this rank `goes_first`, else when rank `first` has left it. Returns its key, which
  /// begins with `prefix`: the first one signals it when it leaves. UsageError when there is no store to signal through.
  std::string enter(const char* call, const std::string& prefix, bool goes_first, int first, std::source_location where);
  /// Sets a key that others wait for.
  void signal(const std::string& key, const std::string& value = "1") noexcept;

  /// Says that `rank` has ended, with what others may read about it. It uses the store no more.
  void end(int rank, const std::string& last_report) noexcept;
  /// For the rank that serves the store: returns when all of `size` ranks have said so, nobody is left, or patience is over.
  void serve_until_all_have_ended(int size) noexcept;

 private:
  /// Waits for a key that rank `from` sets.
  void wait_for(const std::string& key, int from, const char* call, std::source_location where);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::chrono::milliseconds timeout_;
  FailurePolicy& failures_;
  std::atomic<int> entered_ = 0;  // the same on every rank, since all enter scopes in the same order
};

}  // namespace accelerate::detail
