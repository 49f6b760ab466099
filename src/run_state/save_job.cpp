#include "run_state/save_job.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/file.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Into the folder that is made durable as a whole.
void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.place();
}

/// What each process leaves beside its files for the one that puts the checkpoint together.
fs::path report_path(const std::string& aside, int process) { return fs::path(aside) / fmt::format("report_{}.json", process); }

void write_report(const SaveJob& job, const std::vector<FileRecord>& records, const std::string& failure) {
  json report = {{"failure", failure}, {"files", json::array()}};
  for (const auto& record : records) report["files"].push_back({record.name, record.bytes, record.crc32});
  // A name of a file that is not UTF-8 must not keep the others from hearing what went wrong with it.
  write_text(report_path(job.aside, job.process), report.dump(-1, ' ', false, json::error_handler_t::replace));
}

/// Reads the reports into a manifest and removes them. The first failure that one tells of is thrown.
Manifest join_reports(const SaveJob& job) {
  Manifest manifest{.num_processes = job.num_processes};
  for (const int process : job.writers) {
    const InputFile file(report_path(job.aside, process));
    const json report = json::parse(file.text(0, file.size()));
    if (!report["failure"].get<std::string>().empty()) {
      throw CheckpointError(fmt::format("rank {}: {}", process, report["failure"].get<std::string>()));
    }
    for (const auto& record : report["files"]) manifest.files.push_back({record[0], record[1], record[2]});
    fs::remove(file.path());
  }
  return manifest;
}

/// Files that hooks have written belong to the checkpoint as well, also those in folders of theirs, at `path` from its top.
void add_others(Manifest& manifest, const std::set<std::string>& known, const fs::path& top, const std::string& path = "") {
  for (const auto& entry : fs::directory_iterator(top / path)) {
    const std::string name = (fs::path(path) / entry.path().filename()).string();
    if (entry.is_symlink() || known.contains(name)) continue;
    if (entry.is_directory()) {
      add_others(manifest, known, top, name);
    } else if (entry.is_regular_file()) {
      manifest.files.push_back(settled_record_of(top.string(), name));
    }
  }
  if (!path.empty()) sync_folder_entries(top / path);
}

/// The names of the files of the checkpoint that is there; empty when nothing tells.
std::set<std::string> files_of(const fs::path& folder) {
  std::set<std::string> names;
  try {
    if (const auto manifest = read_manifest(folder)) {
      for (const auto& record : manifest->files) names.insert(record.name);
    }
  } catch (const Error&) {  // a damaged one tells nothing
  }
  return names;
}

}  // namespace

std::string SaveJob::write() {
  std::vector<FileRecord> records;
  std::string failure;
  try {
    content.copies.make();
    records = write_files(content.files, aside);
  } catch (const std::exception& error) {
    failure = error.what();
    std::error_code ignored;
    for (const auto& file : content.files) fs::remove(fs::path(aside) / file.name, ignored);
  }
  try {
    write_report(*this, records, failure);
  } catch (const std::exception& error) {
    if (failure.empty()) failure = error.what();
  }
  return failure;
}

std::string SaveJob::await_reports(const std::atomic<bool>& give_up) const {
  for (const int writer : writers) {
    std::error_code problem;
    while (!fs::exists(report_path(aside, writer), problem)) {
      if (!fs::exists(aside, problem)) return fmt::format("{} was removed while it was written.", aside);
      if (give_up) return fmt::format("rank {} did not write its part of {}.", writer, aside);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return "";
}

std::string SaveJob::put_together() const {
  try {
    Manifest manifest = join_reports(*this);
    std::set<std::string> known;
    for (const auto& record : manifest.files) known.insert(record.name);
    add_others(manifest, known, staged->path());
    write_text(staged->path() / kManifestName, manifest_text(manifest));
    // Not by trust in the reports: on a network file system, or with a second run in the same place, files may be gone.
    if (const auto defect = find_defect(staged->path(), manifest); !defect.empty())
      throw CheckpointError(fmt::format("{} is not complete: {}.", staged->path().string(), defect));
    const auto before = files_of(staged->target());
    staged->commit([&](const std::string& name) { return before.contains(name) || is_run_file(name); });
  } catch (const std::exception& error) {
    return error.what();
  }
  if (afterwards) afterwards();
  return "";
}

}  // namespace accelerate::detail
