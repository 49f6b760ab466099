// Does a progress bar slow down a loop whose step takes one microsecond? The promise is: by no more than 10 %.
// Loops without a bar alternate with loops that have one, on a terminal and into a file; the median ratio counts.
#include <fcntl.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <accelerate/console/progress.h>

namespace {

constexpr int64_t kSteps = 200'000;
constexpr int kRounds = 25;

/// Work that the compiler cannot remove and that reads no clock.
uint64_t busy(uint64_t state, int iterations) {
  for (int i = 0; i < iterations; ++i) state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state;
}

volatile uint64_t sink = 1;

template <typename Range>
double seconds_of(Range&& range, int iterations) {
  uint64_t state = sink;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step : range) state = busy(state + static_cast<uint64_t>(step), iterations);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  sink = state;
  return passed.count();
}

/// How many rounds of `busy` take a microsecond on this machine.
int iterations_per_microsecond() {
  constexpr int kTrial = 1000;
  double best = 1;
  for (int i = 0; i < 5; ++i) best = std::min(best, seconds_of(accelerate::CountRange{10'000}, kTrial));
  return std::max(1, static_cast<int>(kTrial * 10'000 * 1e-6 / best));
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main() {
  ::setenv("TERM", "xterm", 1);
  ::setenv("LC_ALL", "C.UTF-8", 1);
  int user = -1, terminal = -1;
  if (::openpty(&user, &terminal, nullptr, nullptr, nullptr) != 0) return std::perror("openpty"), 1;
  std::jthread reader([user] {  // somebody looks at the terminal, or its buffer would fill up
    for (char bytes[4096]; ::read(user, bytes, sizeof bytes) > 0;) continue;
  });
  std::FILE* file = std::tmpfile();

  const int iterations = iterations_per_microsecond();
  const auto with_bar = [iterations](int file_descriptor) {
    return seconds_of(accelerate::progress(kSteps, {.description = "bench", .file_descriptor = file_descriptor}), iterations);
  };
  std::vector<double> bare, on_terminal, in_file;  // the last two as ratios to the loop right before them
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(seconds_of(accelerate::CountRange{kSteps}, iterations));
    on_terminal.push_back(with_bar(terminal) / bare.back());
    bare.push_back(seconds_of(accelerate::CountRange{kSteps}, iterations));
    in_file.push_back(with_bar(::fileno(file)) / bare.back());
  }
  ::close(terminal);

  std::printf("step without a bar: %.0f ns\n", median(bare) / kSteps * 1e9);
  std::printf("with a bar on a terminal: ratio %.3f\n", median(on_terminal));
  std::printf("with a bar into a file:   ratio %.3f\n", median(in_file));
  return median(on_terminal) <= 1.10 && median(in_file) <= 1.10 ? 0 : 1;
}
