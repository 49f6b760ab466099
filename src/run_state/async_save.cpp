#include "run_state/async_save.h"

#include <algorithm>
#include <cstdio>

#include "checkpoint/staged_folder.h"
#include "core/escaped.h"
#include "run_state/commit.h"

namespace accelerate::detail {

std::vector<int> SavePart::writers() const {
  std::vector<int> ranks;
  for (int i = 0; i < static_cast<int>(leaders.size()); ++i) {
    if (leader_of(i) == leader_of(rank)) ranks.push_back(i);
  }
  return ranks;
}

std::string commit_part(const SavePart& part, std::vector<PartReport> reports) {
  try {
    std::erase_if(reports, [&](const auto& report) { return part.leader_of(report.rank) != part.leader_of(part.rank); });
    commit_checkpoint(*part.staged, reports, static_cast<int>(part.leaders.size()));
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {  // nothing that a commit calls throws anything else
    return "an exception that is not a std::exception";
  }
  if (part.on_commit) part.on_commit();
  return "";
}

AsyncSave::AsyncSave(SavePart part) : part_(std::move(part)), reports_(part_.staging, part_.writers(), part_.rank) {
  const bool decided = part_.staged->set_decides(false);
  try {
    thread_ = std::thread([this] { work(); });
  } catch (...) {
    part_.staged->set_decides(decided);
    throw;
  }
}

AsyncSave::~AsyncSave() {
  if (thread_.joinable()) thread_.join();
  if (told_) return;
  const std::string failure = outcome_ != kUndecided && outcome_ != kCommitted ? outcome_ : problem_;
  if (!failure.empty())
    std::fprintf(stderr, "accelerate: a checkpoint could not be written: %s\n", escaped_lines(failure).c_str());
}

bool AsyncSave::leads() const { return part_.leader_of(part_.rank) == part_.rank; }

const PartReport& AsyncSave::written() {
  written_.wait(false);
  return report_;
}

const std::string& AsyncSave::outcome() {
  if (thread_.joinable()) thread_.join();
  told_ = true;
  if (!leads()) part_.staged.reset();  // the rank that made the folder may save there again
  return outcome_;
}

bool AsyncSave::is_decided(const std::vector<std::string>& outcomes, int leader) const {
  for (int i = 0; i < static_cast<int>(outcomes.size()); ++i) {
    if (part_.leader_of(i) == leader && outcomes[static_cast<size_t>(i)] != kUndecided) return true;
  }
  return false;
}

bool AsyncSave::all_decided(const std::vector<std::string>& outcomes) const {
  return std::all_of(part_.leaders.begin(), part_.leaders.end(), [&](int leader) { return is_decided(outcomes, leader); });
}

std::string AsyncSave::commit_undecided(const std::vector<std::string>& outcomes, const std::vector<PartReport>& reports) {
  if (!leads() || is_decided(outcomes, part_.rank)) return "";
  part_.staged->set_decides(true);
  try {
    reports_.remove();
  } catch (const std::exception& error) {
    return error.what();
  }
  return commit_part(part_, reports);
}

void AsyncSave::discard() {
  if (outcome() != kUndecided || !leads()) return;
  try {
    part_.staged->set_decides(reports_.claim());
  } catch (...) {  // the next save removes the folder
  }
}

void AsyncSave::work() {
  report_ = write_part(part_.snapshot, part_.staging, part_.rank);
  part_.snapshot = {};  // the copies of all weights
  try {
    reports_.publish(report_);
  } catch (const std::exception& error) {
    if (report_.failure.empty()) report_.failure = error.what();
  }
  problem_ = report_.failure;
  written_ = true;
  written_.notify_all();
  try {
    if (reports_.all_published() && reports_.claim()) decide();
  } catch (const std::exception& error) {  // whoever asks for the outcome decides without the reports
    if (problem_.empty()) problem_ = error.what();
  }
}

void AsyncSave::decide() {
  part_.staged->set_decides(true);
  try {
    outcome_ = commit_part(part_, reports_.take());
  } catch (const std::exception& error) {
    outcome_ = error.what();
  }
  if (outcome_.empty()) outcome_ = kCommitted;
  part_.staged.reset();  // one that was not committed is removed
}

}  // namespace accelerate::detail
