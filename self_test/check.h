#pragma once

#include <accelerate/accelerator/options.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

/// What `accelerate test` runs on every rank: checks of this host, this configuration and this build.
namespace accelerate {
class Accelerator;
}

namespace accelerate::self_test {

using Numbers = std::vector<int64_t>;

/// The failures of a check on this rank. Nothing is thrown: a rank that leaves a check early would hang its peers.
class Findings {
 public:
  /// `what` is a sentence without its end: "gather kept the order of the processes".
  void expect(bool holds, const std::string& what);
  void equal(int64_t got, int64_t expected, const std::string& what);
  void equal(const std::string& got, const std::string& expected, const std::string& what);
  void equal(const std::vector<std::string>& got, const std::vector<std::string>& expected, const std::string& what);
  void equal(const Numbers& got, const Numbers& expected, const std::string& what);
  /// Shapes, dtypes and values.
  void equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what);
  /// Two numbers that may differ by `tolerance`.
  void near(double got, double expected, double tolerance, const std::string& what);

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void differ(const std::string& what, const std::string& got, const std::string& expected);
  std::vector<std::string> problems_;
};

/// One thing that must hold on this machine. All processes run it in step.
struct Check {
  /// Ends the line "checking ...".
  const char* name;
  void (*run)(Accelerator& accelerator, Findings& findings);
};

/// Where the runner writes.
struct Streams {
  /// What is checked, by the main process.
  std::FILE* progress = stdout;
  /// What was found wrong, by the process that found it.
  std::FILE* problems = stderr;
};

/// Runs `checks` in their order and stops after the first that fails on any process. Returns the exit code, the same on all
/// processes: 0, or 1. An exception in a check is reported and rethrown, because peers may be waiting inside that check.
int run_checks(std::span<const Check> checks, Accelerator& accelerator, const Streams& streams = {});

/// The checks of `accelerate test`.
std::span<const Check> all_checks();

/// The options of an accelerator that a check creates: a missing peer is a timeout after minutes, not half an hour.
AcceleratorOptions patient(AcceleratorOptions options = {});

/// A tensor of these integers on the accelerator's device.
at::Tensor integers(const Accelerator& accelerator, const Numbers& values);
/// The elements of an integer tensor.
Numbers numbers_of(const at::Tensor& tensor);
/// start, start + 1, ... stop - 1.
Numbers range(int64_t start, int64_t stop);

}  // namespace accelerate::self_test
