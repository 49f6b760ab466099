#include "accelerator/save_job.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
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
      throw CheckpointError(fmt::format("process {}: {}", process, report["failure"].get<std::string>()));
    }
    for (const auto& record : report["files"]) manifest.files.push_back({record[0], record[1], record[2]});
    fs::remove(file.name());
  }
  return manifest;
}

/// Files that hooks have written belong to the checkpoint as well.
void add_others(Manifest& manifest, const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool known =
        std::any_of(manifest.files.begin(), manifest.files.end(), [&](const auto& record) { return record.name == name; });
    if (!known && entry.is_regular_file()) manifest.files.push_back(record_of(folder.string(), name));
  }
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
      if (give_up) return fmt::format("process {} did not write its part of {}.", writer, aside);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return "";
}

std::string SaveJob::put_together() const {
  try {
    Manifest manifest = join_reports(*this);
    add_others(manifest, staged->path());
    write_text(staged->path() / kManifestName, manifest_text(manifest));
    staged->commit(is_run_file);
  } catch (const std::exception& error) {
    return error.what();
  }
  if (afterwards) afterwards();
  return "";
}

}  // namespace accelerate::detail
