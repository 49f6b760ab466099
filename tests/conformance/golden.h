#pragma once

#include <accelerate/distributed/value.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

/// What the real Accelerate returned, as data, and how ours is held against it.
namespace golden {

/// Where a file lies: in the folder ACCELERATE_GOLDEN_DIR, by default tests/golden.
std::string path(const std::string& name);

/// The content of a file there. Fails the test when it cannot be read.
nlohmann::json read(const std::string& name);

/// A nested value as the data writes it. A namedtuple is a tuple here: names of fields have no place in a Value.
accelerate::Value value_of(const nlohmann::json& node);

/// Equal kinds, keys, order, dtypes and shapes; floating-point numbers to a relative 1e-6.
bool same(const accelerate::Value& ours, const accelerate::Value& theirs);

/// Counts what held, and prints it at the end: nothing is left out silently.
class Tally {
 public:
  explicit Tally(std::string title) : title_(std::move(title)) {}
  ~Tally();
  /// Counts a case. `listed` is the sentence of docs/python_to_cpp.md by which ours is another on purpose, or nothing; a case
  /// that holds although it is listed is as wrong as one that does not hold and is not. `gave` says what ours was.
  void judge(const std::string& name, bool held, const std::string& gave, const std::string& listed = "");
  /// A case that this version has no counterpart for.
  void absent(const std::string& reason) { ++absent_[reason]; }
  int cases() const;

 private:
  void differs(const std::string& name, const std::string& how);

  std::string title_;
  int held_ = 0, differing_ = 0;
  std::map<std::string, int> listed_, absent_;
};

/// The result of a call as a value, or the text of the accelerate::Error it threw.
struct Outcome {
  accelerate::Value value;
  std::string error;
};
/// The outcome in words, for `judge`.
std::string to_string(const Outcome& outcome);
Outcome outcome_of(const std::function<accelerate::Value()>& call);

}  // namespace golden
