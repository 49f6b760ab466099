#pragma once

#include <string>
#include <vector>

#include "run_state/part_writer.h"

namespace accelerate::detail {

/// The reports of the ranks that write into one staging folder, as files in it. Each rank publishes its own and then asks once
/// whether all are there: the last one finds them, whatever has become of the others, of the process group and of its store. So
/// no rank waits for another, and one of them commits.
class StagedReports {
 public:
  /// `writers` in the order of ranks; the first has made the folder.
  StagedReports(std::string staging, std::vector<int> writers, int rank);

  /// CheckpointError when it cannot be written.
  void publish(const PartReport& report);
  /// CheckpointError when that cannot be known.
  bool all_published() const;
  /// Whether the caller decides on the folder: true once, on one rank.
  bool claim();
  /// All of them, removed from the folder. Only for the rank that decides.
  std::vector<PartReport> take();
  void remove();

 private:
  std::string path_of(int rank) const;
  std::string claimed_path() const;

  std::string staging_;
  std::vector<int> writers_;
  int rank_;
  bool published_ = false;
};

}  // namespace accelerate::detail
