#pragma once

#include <accelerate/core/launch_environment.h>
#include <sys/types.h>

#include <optional>
#include <string>

namespace accelerate::detail {

/// How a process presents itself at the rendezvous: the job it belongs to, its rank there, and which process it is.
struct RankCard {
  int rank = 0;
  int num_processes = 1;
  /// What the launcher or the user calls the job; empty where nobody has named it.
  std::string run_id = {};
  /// The program's name, without its folder: hosts may keep it in different ones.
  std::string program = {};
  std::string host = {};
  pid_t pid = 0;
  /// Random, so that no two processes have the same card.
  std::string nonce = {};
  /// Shows that the process knows the shared secret; empty where there is none.
  std::string proof = {};

  /// That of this process.
  static RankCard of_this_process(const LaunchEnvironment& me, std::string nonce);
  /// What `to_text` wrote, or nothing.
  static std::optional<RankCard> parse(const std::string& text);

  std::string to_text() const;
};

/// What must be equal on all ranks of a job: the number of ranks and the run id, or the program where there is no run id.
bool same_job(const RankCard& left, const RankCard& right);

/// "rank 1 of 2 of program train, run id 7 (process 123 on gpu01)".
std::string describe(const RankCard& card);

}  // namespace accelerate::detail
