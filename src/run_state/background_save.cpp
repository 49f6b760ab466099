#include "run_state/background_save.h"

#include <chrono>
#include <cstdio>

#include "core/escaped.h"

namespace accelerate::detail {

BackgroundSave::BackgroundSave(SaveJob job) : job_(std::move(job)), thread_([this] { work(); }) {}

BackgroundSave::~BackgroundSave() {
  // Peers end like this process does, and have begun to write before. One that has died is not waited for without end.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done_ && (!part_written_ || std::chrono::steady_clock::now() < deadline) && !give_up_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  give_up_ = true;
  if (thread_.joinable()) thread_.join();
  if (!failure_.empty() && !told_)
    std::fprintf(stderr, "accelerate: a checkpoint could not be written: %s\n", escaped_lines(failure_).c_str());
}

std::string BackgroundSave::part() {
  part_written_.wait(false);
  return part_failure_;
}

std::string BackgroundSave::result() {
  // Longer than network file systems take to show a new file.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done_ && !give_up_ && !reports_seen_ && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  if (!done_ && !reports_seen_) give_up_ = true;
  if (thread_.joinable()) thread_.join();
  told_ = true;
  return failure_;
}

void BackgroundSave::work() {
  try {
    part_failure_ = job_.write();
  } catch (...) {  // out of memory, if anything
    part_failure_ = "writing it was not possible.";
  }
  failure_ = part_failure_;
  job_.content = {};  // the copies of all weights
  part_written_ = true;
  part_written_.notify_all();
  if (job_.staged) {
    try {
      // Also after a failure: what a peer still writes into could not be removed.
      const std::string missing = job_.await_reports(give_up_);
      reports_seen_ = missing.empty();
      if (failure_.empty()) failure_ = missing;
      if (failure_.empty()) failure_ = job_.put_together();
    } catch (...) {
      failure_ = "putting it together was not possible.";
    }
    job_.staged.reset();  // one that did not come about is removed
  }
  done_ = true;
}

}  // namespace accelerate::detail
