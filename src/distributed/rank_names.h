#pragma once

#include <string>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// How messages name the ranks of a group: by their number in it and, where that is another, by that in the whole run.
class RankNames {
 public:
  /// Of a group that is the whole run.
  RankNames() = default;
  /// `in_run`: the number of each rank in the run.
  explicit RankNames(std::vector<int> in_run) : in_run_(std::move(in_run)) {}

  int in_run(int rank) const { return in_run_.empty() ? rank : in_run_[static_cast<size_t>(rank)]; }

  /// " (rank 5 of the run)" to stand behind the number in the group; nothing when that is the same.
  std::string aside(int rank) const {
    return in_run(rank) == rank ? "" : " (rank " + std::to_string(in_run(rank)) + " of the run)";
  }
  std::string aside(size_t rank) const { return aside(static_cast<int>(rank)); }

 private:
  std::vector<int> in_run_;
};

}  // namespace accelerate::detail
