#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "checkpoint/folder_files.h"

namespace accelerate::detail {

struct RunParts;

/// Finds the checkpoint that a run is resumed from, and validates it. Its functions are collectives; one rank looks, or with
/// folders that hosts do not share one of each host.
class CheckpointFinder {
 public:
  /// `looks`: this rank does. `verify`: checksums are compared.
  CheckpointFinder(const RunParts& parts, bool looks, bool verify, std::source_location where)
      : parts_(parts), looks_(looks), verify_(verify), where_(where) {}

  /// The number of the newest one in a folder of numbered checkpoints that is complete on every host that has its own; nothing
  /// when there is none. CheckpointError when there are some and none can be used.
  std::optional<int64_t> newest(const std::string& checkpoints);
  /// CheckpointError when the folder cannot be used.
  void check(const std::string& folder);
  /// What was read to validate it: null on ranks that did not look.
  std::unique_ptr<FolderFiles> take_files() { return std::move(files_); }

 private:
  /// The checkpoints of this host.
  struct Candidates {
    std::string folder;
    std::vector<int64_t> numbers, refused;
    std::string last_defect;
  };
  /// Passes over candidates above `limit`, and those in which something is wrong. FileAccessError when that cannot be known.
  void pass_over(Candidates& candidates, int64_t limit);
  void look(std::optional<Candidates>& candidates, const std::string& checkpoints, int64_t limit);

  const RunParts& parts_;
  const bool looks_, verify_;
  const std::source_location where_;
  std::unique_ptr<FolderFiles> files_;
};

/// Whether a live run that this one only reads from has removed it meanwhile.
bool is_gone(const std::string& folder);

}  // namespace accelerate::detail
