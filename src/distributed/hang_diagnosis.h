#pragma once

#include <string>
#include <vector>

#include "distributed/logbook.h"
#include "distributed/rank_names.h"

namespace accelerate::detail {

/// What is known of a rank's process. `silent`: it was asked and did not answer. `unknown`: it could not be asked.
enum class Presence { running, stopped, gone, silent, unknown };

/// What is known of a rank.
struct RankReport {
  Presence presence = Presence::unknown;
  int64_t pid = 0;
  /// Its own notes; nothing when nobody could read them.
  std::optional<RankEntry> entry = {};
};

/// Which ranks wait where, which are missing, and where those were last seen: one sentence or more, then a line for each
/// rank. Pure: it depends on nothing but the reports, one for each rank. `mismatch`: the number of a call that is known to
/// differ, also where a rank has made so many since that its call log no longer shows it.
std::string diagnose(const std::vector<RankReport>& reports, int64_t mismatch = 0, const RankNames& names = {});

/// What of a report is news when it changes: which ranks are missing, dead or stopped, and which wait in which call. Not for how
/// long.
std::string gist_of(const std::vector<RankReport>& reports);

/// The number of the oldest call that is not the same on all ranks, as far as they remember; 0 when there is none.
int64_t mismatched_call(const std::vector<RankReport>& reports);

/// "gather of float32[3, 2] (call 7) at train.cpp:41".
std::string describe(const Call& call);
/// "load_file of weights.safetensors", "recv from rank 0 at train.cpp:41".
std::string describe(const Activity& activity);

/// The newest call that a rank waits in now, or null.
const Call* waiting_call(const RankEntry& entry);

}  // namespace accelerate::detail
