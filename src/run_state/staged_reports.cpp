#include "run_state/staged_reports.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/file.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

StagedReports::StagedReports(std::string staging, std::vector<int> writers, int rank)
    : staging_(std::move(staging)), writers_(std::move(writers)), rank_(rank) {}

std::string StagedReports::path_of(int rank) const { return fmt::format("{}/report_{}.json", staging_, rank); }

std::string StagedReports::claimed_path() const { return staging_ + "/claimed_report.json"; }

void StagedReports::publish(const PartReport& report) {
  const std::string text = report_text(report);
  OutputFile file(path_of(rank_));
  file.write(text.data(), text.size());
  file.place();
  published_ = true;
}

bool StagedReports::all_published() const {
  return std::all_of(writers_.begin(), writers_.end(), [&](int writer) {
    std::error_code problem;
    const bool there = fs::exists(path_of(writer), problem);
    if (problem) throw CheckpointError(fmt::format("Cannot access {}: {}.", path_of(writer), problem.message()));
    return there;
  });
}

bool StagedReports::claim() {
  // Nobody else can claim the folder of a first rank that has no report.
  if (rank_ == writers_.front() && !published_) return true;
  // Of several that rename one file, one succeeds.
  std::error_code problem;
  fs::rename(path_of(writers_.front()), claimed_path(), problem);
  if (problem && problem != std::errc::no_such_file_or_directory)
    throw CheckpointError(fmt::format("Cannot rename {}: {}.", path_of(writers_.front()), problem.message()));
  return !problem;
}

std::vector<PartReport> StagedReports::take() {
  std::vector<PartReport> reports;
  for (const int writer : writers_) {
    const InputFile file(writer == writers_.front() ? claimed_path() : path_of(writer));
    reports.push_back(parse_report(file.text(0, file.size())));
  }
  remove();
  return reports;
}

void StagedReports::remove() {
  fs::remove(claimed_path());
  for (const int writer : writers_) fs::remove(path_of(writer));
}

}  // namespace accelerate::detail
