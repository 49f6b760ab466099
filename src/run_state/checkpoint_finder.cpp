#include "run_state/checkpoint_finder.h"

#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/shared_failure.h"
#include "core/escaped.h"
#include "core/file.h"
#include "run_state/checkpoint_cleanup.h"
#include "run_state/checkpoint_paths.h"
#include "run_state/checkpoint_reader.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

bool is_gone(const std::string& folder) {
  std::error_code ignored;
  return !fs::exists(folder, ignored);
}

void CheckpointFinder::pass_over(Candidates& candidates, int64_t limit) {
  auto& numbers = candidates.numbers;
  auto& refused = candidates.refused;
  while (!numbers.empty()) {
    const std::string candidate = fs::path(candidates.folder) / checkpoint_name(numbers.back());
    std::string defect = "another host does not have it";
    if (numbers.back() <= limit) {
      try {
        defect = find_checkpoint_defect(parts_, candidate, verify_, files_);
      } catch (const FileAccessError&) {
        if (!is_gone(candidate)) throw;  // gone: NFS answers with a stale handle
      }
    }
    if (defect.empty()) return;
    if (is_gone(candidate)) {  // its run has newer ones
      numbers = checkpoint_numbers(candidates.folder);
      std::erase_if(numbers, [&](int64_t number) { return std::find(refused.begin(), refused.end(), number) != refused.end(); });
      continue;
    }
    get_logger("accelerate")
        .warning({.main_process_only = false}, "load_state skips {}: {}", escaped(candidate), escaped_lines(defect));
    candidates.last_defect = fmt::format("{}: {}", candidate, defect);
    refused.push_back(numbers.back());
    numbers.pop_back();
  }
}

void CheckpointFinder::look(std::optional<Candidates>& candidates, const std::string& checkpoints, int64_t limit) {
  if (!candidates) {
    recover_checkpoints(checkpoints);
    candidates.emplace(
        Candidates{.folder = checkpoints, .numbers = checkpoint_numbers(checkpoints), .refused = {}, .last_defect = {}});
  }
  pass_over(*candidates, limit);
  if (!candidates->numbers.empty() || candidates->refused.empty() || limit != INT64_MAX) return;
  throw CheckpointError(fmt::format(
      "none of the checkpoints in {} can be used (found {}). {}. Repair one, or move them away to start from scratch.",
      checkpoints, candidates->refused.size(), candidates->last_defect));
}

std::optional<int64_t> CheckpointFinder::newest(const std::string& checkpoints) {
  constexpr int64_t kNone = -1, kNotAsked = -2;
  std::optional<Candidates> own;
  for (int64_t limit = INT64_MAX;;) {
    const std::string failure = failure_of([&] {
      if (looks_) look(own, checkpoints, limit);
    });
    throw_failure("load_state", shared_failure(parts_.state, failure, where_));
    const int64_t mine = !own ? kNotAsked : own->numbers.empty() ? kNone : own->numbers.back();
    auto all = gather_object(parts_.state, std::vector<int64_t>{mine}, where_);
    std::erase(all, kNotAsked);
    const auto [lowest, highest] = std::minmax_element(all.begin(), all.end());
    if (*lowest == *highest) return *lowest == kNone ? std::nullopt : std::optional(*lowest);
    if (*lowest == kNone) {
      throw CheckpointError(
          fmt::format("load_state: a host has no complete checkpoint in {}; another one has {}. Copy it "
                      "there, or remove it to start from scratch.",
                      checkpoints, checkpoint_name(*highest)));
    }
    limit = *lowest;
  }
}

void CheckpointFinder::check(const std::string& folder) {
  const std::string failure = failure_of([&] {
    if (!looks_) return;
    recover_checkpoint(folder);
    std::error_code problem;
    const bool is_folder = fs::is_directory(folder, problem);
    const auto defect = is_folder ? find_checkpoint_defect(parts_, folder, verify_, files_)
                        : problem ? problem.message()
                                  : "it is not a folder";
    if (!defect.empty()) throw CheckpointError(fmt::format("{} cannot be used: {}", folder, defect));
  });
  throw_failure("load_state", shared_failure(parts_.state, failure, where_));
}

}  // namespace accelerate::detail
