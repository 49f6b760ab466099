#pragma once

#include <algorithm>
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

/// What `action` returns or throws; runtime_error with `problem` when that takes longer than `patience`. `notice` is called now
/// and then meanwhile.
template <class Action, class Notice>
auto within(std::chrono::milliseconds patience, const char* problem, Action action, Notice notice) {
  constexpr std::chrono::milliseconds kBetween{500};
  const auto end = std::chrono::steady_clock::now() + patience;
  auto result = start_aside(std::move(action));
  for (auto now = std::chrono::steady_clock::now(); now < end; now = std::chrono::steady_clock::now()) {
    if (result.wait_for(std::min<std::chrono::steady_clock::duration>(end - now, kBetween)) == std::future_status::ready)
      return result.get();
    notice();
  }
  throw std::runtime_error(problem);
}

template <class Action>
auto within(std::chrono::milliseconds patience, const char* problem, Action action) {
  return within(patience, problem, std::move(action), [] {});
}

}  // namespace accelerate::detail
