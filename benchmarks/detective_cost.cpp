// What the hang detective costs when nothing is wrong. A collective: to write it down, to compare it with what three other ranks
// of the host have written, and to write its end down; limit 2 us, also for a tensor of nested data. A step without collectives
// of the user's own has one such entry, for the backward pass, which is announced first; limit 1 us above what it cost before it
// was announced and compared.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/logbook.h"

namespace {

constexpr int kRounds = 11, kCalls = 100'000;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double nanoseconds_each(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
  return took.count() / kCalls;
}

}  // namespace

int main() {
  accelerate::detail::Logbook logbook;
  std::array<accelerate::detail::Logbook, 3> peers;
  const at::Tensor tensor = at::zeros({32, 128});
  // Other ranks write all the time, so that what they wrote lies in the cache of another core.
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      for (auto& peer : peers) peer.leave(peer.enter({"gather", std::source_location::current(), &tensor}));
    }
  });
  int contradictions = 0;
  const auto compare = [&](int64_t number) {
    for (const auto& peer : peers) contradictions += accelerate::detail::contradict(logbook.mark(number), peer.mark(number));
  };
  const auto collective = [&] {
    const int64_t number = logbook.enter({"gather", std::source_location::current(), &tensor});
    compare(number);
    logbook.leave(number);
  };
  const std::string outline = "{inputs:t,labels:t,weights:[tttt]}";
  const auto nested = [&] {
    const accelerate::detail::Nesting nesting(outline, 6);
    const int64_t number = logbook.enter(
        {.name = "gather", .where = std::source_location::current(), .tensor = &tensor, .nesting = &nesting, .leaf = 3});
    compare(number);
    logbook.leave(number);
  };
  const auto pass = [&] {
    const int64_t number = logbook.announce({"backward", std::source_location::current()});
    compare(number);
    logbook.begin_waiting(number);
    logbook.leave(number);
  };
  const auto pass_before = [&] { logbook.leave(logbook.enter({"backward", std::source_location::current()})); };
  std::vector<double> collectives, leaves, passes, added;
  for (int round = 0; round < kRounds; ++round) {
    collectives.push_back(nanoseconds_each(collective));
    leaves.push_back(nanoseconds_each(nested));
    passes.push_back(nanoseconds_each(pass));
    added.push_back(passes.back() - nanoseconds_each(pass_before));
  }
  done = true;
  writer.join();
  std::printf(
      "detective: %.0f ns a collective, %.0f ns one of nested data, limit 2000 ns; %.0f ns a backward pass, %.0f ns of it to "
      "announce and compare, limit 1000 ns (medians of %d rounds, %d contradictions)\n",
      median(collectives), median(leaves), median(passes), median(added), kRounds, contradictions);
}
