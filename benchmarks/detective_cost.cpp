// What the hang detective costs a call when nothing is wrong: writing it down before and after. Limit: 2 us.
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "distributed/logbook.h"

int main() {
  constexpr int kRounds = 11, kCalls = 200'000;
  accelerate::Logbook logbook;
  const at::Tensor tensor = at::zeros({32, 128});
  std::vector<double> nanoseconds;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) logbook.leave(logbook.enter("gather", std::source_location::current(), &tensor));
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    nanoseconds.push_back(took.count() / kCalls);
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  std::printf("detective: %.0f ns a call (median of %d rounds, %.0f to %.0f), limit 2000 ns\n", nanoseconds[kRounds / 2], kRounds,
              nanoseconds.front(), nanoseconds.back());
}
