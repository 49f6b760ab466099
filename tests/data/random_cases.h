#pragma once

#include <cstdlib>
#include <random>

/// For tests that draw their cases: the same ones in every run.
namespace random_cases {

/// How many: ACCELERATE_TEST_CASES, or the number that is usual for the test.
inline int count(int usual = 400) {
  const char* number = std::getenv("ACCELERATE_TEST_CASES");
  return number && *number ? std::atoi(number) : usual;
}

/// Numbers that are the same on every machine, unlike those of std::uniform_int_distribution.
class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  /// 0 to n - 1.
  size_t below(size_t n) { return random_() % n; }
  bool coin() { return below(2) == 1; }

 private:
  std::mt19937 random_;
};

}  // namespace random_cases
