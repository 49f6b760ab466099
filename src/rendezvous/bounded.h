#pragma once

#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace accelerate::detail {

/// Starts `action` in a thread of its own that can be left behind. A client of c10d's store waits without limit for a server
/// that accepts it and says nothing (a stopped rank 0, an unrelated process on the port), so a thread that must not block may not
/// call it directly. What `action` uses must be its own or shared.
template <class Action>
auto start_aside(Action action) -> std::future<decltype(action())> {
  std::packaged_task<decltype(action())()> task(std::move(action));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

/// What `action` returns or throws; runtime_error with `problem` when that takes longer than `patience`.
template <class Action>
auto within(std::chrono::milliseconds patience, const char* problem, Action action) {
  auto result = start_aside(std::move(action));
  if (result.wait_for(patience) != std::future_status::ready) throw std::runtime_error(problem);
  return result.get();
}

}  // namespace accelerate::detail
