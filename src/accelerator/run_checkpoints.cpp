#include "accelerator/run_checkpoints.h"

#include <accelerate/checkpoint/module_state.h>
#include <accelerate/core/error.h>
#include <accelerate/core/logging.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/staged_folder.h"
#include "core/file.h"
#include "distributed/logbook.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kCheckpoints[] = "checkpoints";
constexpr char kUnfinished[] = "unfinished_checkpoints";  // not among the others: whoever lists those finds whole ones only
constexpr char kPrefix[] = "checkpoint_";

std::optional<int> number_in(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = 0;
  const char* begin = name.data() + sizeof(kPrefix) - 1;
  const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), number);
  return problem == std::errc() && end == name.data() + name.size() && number >= 0 ? std::optional(number) : std::nullopt;
}

/// The numbers of the checkpoints in a folder, lowest first.
std::vector<int> checkpoint_numbers(const fs::path& folder) {
  std::vector<int> numbers;
  std::error_code problem;
  for (fs::directory_iterator entry(folder, problem), end; !problem && entry != end; entry.increment(problem)) {
    if (const auto number = number_in(entry->path().filename().string())) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string expand_user(const std::string& path) {
  const auto home = process_environment("HOME");
  return home && (path == "~" || path.starts_with("~/")) ? *home + path.substr(1) : path;
}

void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

/// What each process leaves beside its files for the one that puts the checkpoint together.
fs::path report_path(const std::string& aside, int process) { return fs::path(aside) / fmt::format("report_{}.json", process); }

void write_report(const std::string& aside, int process, const std::vector<FileRecord>& records, const std::string& failure) {
  json report = {{"failure", failure}, {"files", json::array()}};
  for (const auto& record : records) report["files"].push_back({record.name, record.bytes, record.crc32});
  write_text(report_path(aside, process), report.dump());
}

/// Writes this process's files and its report. Returns what went wrong, or nothing.
std::string write_part(const std::vector<RunFile>& files, const std::string& aside, int process) {
  std::vector<FileRecord> records;
  std::string failure;
  try {
    records = write_files(files, aside);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  try {
    write_report(aside, process, records, failure);
  } catch (const std::exception& error) {
    if (failure.empty()) failure = error.what();
  }
  return failure;
}

/// Reads the reports of these processes into a manifest and removes them. The first failure that one tells of is thrown.
Manifest join_reports(const std::string& aside, const std::vector<int>& processes, int num_processes) {
  Manifest manifest{.num_processes = num_processes};
  for (const int process : processes) {
    const InputFile file(report_path(aside, process));
    const json report = json::parse(file.text(0, file.size()));
    if (!report["failure"].get<std::string>().empty()) {
      throw CheckpointError(fmt::format("process {}: {}", process, report["failure"].get<std::string>()));
    }
    for (const auto& record : report["files"]) manifest.files.push_back({record[0], record[1], record[2]});
    fs::remove(file.name());
  }
  return manifest;
}

/// Waits, without a word to them, until these processes have written their reports. Returns why it gave up, or nothing.
std::string await_reports(const std::string& aside, const std::vector<int>& processes, const std::atomic<bool>& give_up) {
  for (const int process : processes) {
    std::error_code problem;
    while (!fs::exists(report_path(aside, process), problem)) {
      // Gone: the run has ended, and another one has cleared up.
      if (!fs::exists(aside, problem)) return fmt::format("{} was removed while it was written.", aside);
      if (give_up) return fmt::format("process {} did not write its part of {}.", process, aside);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  return "";
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

std::string put_together(StagedFolder& staged, const std::vector<int>& processes, int num_processes) {
  try {
    Manifest manifest = join_reports(staged.path().string(), processes, num_processes);
    add_others(manifest, staged.path());
    write_text(staged.path() / kManifestName, manifest_text(manifest));
    staged.commit(is_run_file);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::vector<torch::nn::Module*> modules_of(const RunParts& parts) {
  std::vector<torch::nn::Module*> modules;
  for (const auto& model : parts.models) modules.push_back(&model->module());
  return modules;
}

template <class Hook>
HookHandle keep_hook(const std::shared_ptr<std::list<Hook>>& hooks, Hook hook) {
  const auto place = hooks->insert(hooks->end(), std::move(hook));
  return HookHandle([hooks, place] { hooks->erase(place); });
}

std::string defect_of(const RunParts& parts, const std::string& folder, bool verify) {
  try {
    if (const auto manifest = read_manifest(folder)) return find_defect(folder, *manifest, verify);
    read_run(parts, folder);  // Python wrote it, and left nothing to tell by
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where) {
  const auto all = gather_object(
      state, std::vector<std::string>{mine.empty() ? "" : fmt::format("process {}: {}", state.process_index(), mine)}, where);
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& text) { return !text.empty(); });
  return found == all.end() ? "" : *found;
}

HookHandle RunCheckpoints::before_saving(SaveStateHook hook) { return keep_hook(save_hooks_, std::move(hook)); }

HookHandle RunCheckpoints::before_loading(LoadStateHook hook) { return keep_hook(load_hooks_, std::move(hook)); }

RunCheckpoints::~RunCheckpoints() {
  if (writer_.joinable()) {
    // Peers end like this process does, and have begun to write before. One that has died is not waited for without end.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done_ && (!part_written_ || std::chrono::steady_clock::now() < deadline)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    give_up_ = true;
    writer_.join();
  }
  if (!writer_failure_.empty())
    std::fprintf(stderr, "accelerate: a checkpoint could not be written: %s\n", writer_failure_.c_str());
}

bool RunCheckpoints::leads(const ProcessState& state) const {
  return project_.save_on_each_node ? state.is_local_main_process() : state.is_main_process();
}

RunCheckpoints::Target RunCheckpoints::choose_target(const ProcessState& state, const std::string& folder,
                                                     std::source_location where) {
  if (!folder.empty()) {
    const fs::path target = fs::path(expand_user(folder)).lexically_normal();
    const fs::path path = target.has_filename() ? target : target.parent_path();
    return {path.string(), (path.parent_path() / ("." + path.filename().string() + ".unfinished")).string()};
  }
  if (!project_.automatic_checkpoint_naming || project_.project_dir.empty()) {
    throw UsageError(
        "save_state was given no folder. Give one, or set project_dir and automatic_checkpoint_naming in "
        "ProjectConfiguration.");
  }
  const fs::path project = expand_user(project_.project_dir);
  std::vector<int64_t> number = {0};
  if (project_.iteration) {
    number = {*project_.iteration};
  } else {
    const auto present = checkpoint_numbers(project / kCheckpoints);
    if (!present.empty()) number = {present.back() + 1};
  }
  broadcast_object_list(state, number, 0, where);
  project_.iteration = static_cast<int>(number[0]) + 1;
  const std::string name = kPrefix + std::to_string(number[0]);
  return {(project / kCheckpoints / name).string(), (project / kUnfinished / name).string()};
}

std::string RunCheckpoints::save(const RunParts& parts, const std::string& folder, const SaveStateOptions& options,
                                 std::source_location where) {
  finish(parts.state, where);
  const Target target = choose_target(parts.state, folder, where);
  const Busy busy("save_state", target.folder);
  const bool leading = leads(parts.state);
  std::shared_ptr<StagedFolder> staged;
  std::string failure;
  if (leading) {
    try {
      staged = std::make_shared<StagedFolder>(target.folder, target.aside);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  failure = shared_failure(parts.state, failure, where);
  std::vector<RunFile> files;
  if (failure.empty()) {
    try {
      files = take_snapshot(parts, target.aside, {options.safe_serialization, options.async, leading});
    } catch (const std::exception& error) {
      failure = error.what();
    }
    failure = shared_failure(parts.state, failure, where);
  }
  if (!failure.empty()) throw CheckpointError("save_state: " + failure);
  const auto processes = writers_of(parts.state, where);
  const int process = parts.state.process_index(), num_processes = parts.state.num_processes();
  if (options.async) {
    writing_ = true;
    part_written_ = done_ = false;
    writer_ = std::thread([=, this, aside = target.aside, automatic = folder.empty()] {
      writer_failure_ = write_part(files, aside, process);
      part_written_ = true;
      done_ = !staged;
      if (!staged) return;
      writer_failure_ = await_reports(aside, processes, give_up_);
      if (writer_failure_.empty()) writer_failure_ = put_together(*staged, processes, num_processes);
      if (writer_failure_.empty() && automatic) remove_oldest();
      done_ = true;
    });
    return target.folder;
  }
  failure = shared_failure(parts.state, write_part(files, target.aside, process), where);
  if (failure.empty()) {
    if (staged) failure = put_together(*staged, processes, num_processes);
    failure = shared_failure(parts.state, failure, where);
  }
  if (!failure.empty()) throw CheckpointError("save_state: " + failure);
  if (staged && folder.empty()) remove_oldest();
  return target.folder;
}

std::vector<RunFile> RunCheckpoints::take_snapshot(const RunParts& parts, const std::string& folder,
                                                   const SnapshotOptions& options) {
  std::vector<TensorDict> weights;
  for (const auto* module : modules_of(parts)) weights.push_back(state_dict(*module));
  for (const auto& hook : *save_hooks_) hook(modules_of(parts), weights, folder);
  return snapshot_of(parts, weights, python_random_, options);
}

std::vector<int> RunCheckpoints::writers_of(const ProcessState& state, std::source_location where) const {
  std::vector<int64_t> places = {state.local_process_index()};
  if (project_.save_on_each_node) {
    places = gather_object(state, places, where);
  } else {
    places.assign(static_cast<size_t>(state.num_processes()), 1);
    places[0] = 0;
  }
  // Every 0 begins a machine.
  std::vector<int> writers;
  for (int i = 0; i < state.num_processes(); ++i) {
    if (places[static_cast<size_t>(i)] == 0) {
      if (i > state.process_index()) break;
      writers.clear();
    }
    writers.push_back(i);
  }
  return writers;
}

void RunCheckpoints::finish(const ProcessState& state, std::source_location where) {
  if (!writing_) return;
  writing_ = false;
  while (!part_written_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // An exchange, so that a process that is gone is missed here, by name, and not by the one that waits for its part.
  shared_failure(state, "", where);
  writer_.join();
  const std::string failure = shared_failure(state, std::exchange(writer_failure_, ""), where);
  if (!failure.empty()) throw CheckpointError("save_state: " + failure);
}

void RunCheckpoints::remove_oldest() const {
  if (!project_.total_limit) return;
  const fs::path folder = fs::path(expand_user(project_.project_dir)) / kCheckpoints;
  auto numbers = checkpoint_numbers(folder);
  const auto limit = static_cast<size_t>(std::max(1, *project_.total_limit));
  for (size_t i = 0; i + limit < numbers.size(); ++i) fs::remove_all(folder / (kPrefix + std::to_string(numbers[i])));
}

std::optional<std::string> RunCheckpoints::load(RunParts parts, const std::string& folder, const LoadStateOptions& options,
                                                std::source_location where) {
  finish(parts.state, where);
  if (folder.empty() && (!project_.automatic_checkpoint_naming || project_.project_dir.empty())) {
    throw UsageError(
        "load_state was given no folder. Give one, or set project_dir and automatic_checkpoint_naming in "
        "ProjectConfiguration.");
  }
  std::vector<std::string> found = {"", ""};  // the folder, and what is wrong with it
  if (leads(parts.state)) {
    if (!folder.empty()) {
      found = {expand_user(folder), ""};
      std::error_code problem;
      found[1] = fs::is_directory(found[0], problem) ? defect_of(parts, found[0], options.verify) : "there is no such folder";
    } else {
      const fs::path checkpoints = fs::path(expand_user(project_.project_dir)) / kCheckpoints;
      const auto numbers = checkpoint_numbers(checkpoints);
      for (auto number = numbers.rbegin(); number != numbers.rend() && found[0].empty(); ++number) {
        const std::string candidate = (checkpoints / (kPrefix + std::to_string(*number))).string();
        const std::string defect = defect_of(parts, candidate, options.verify);
        if (defect.empty()) {
          found[0] = candidate;
        } else {
          get_logger("accelerate").warning("load_state passes over {}: {}", candidate, defect);
        }
      }
    }
  }
  broadcast_object_list(parts.state, found, 0, where);
  if (!found[1].empty()) throw CheckpointError(fmt::format("load_state: {} cannot be used: {}.", found[0], found[1]));
  if (found[0].empty()) return std::nullopt;
  const Busy busy("load_state", found[0]);
  std::shared_ptr<LoadedRun> loaded;
  std::string failure;
  try {
    auto modules = modules_of(parts);
    for (const auto& hook : *load_hooks_) hook(modules, found[0]);
    std::erase_if(parts.models, [&](const auto& model) {
      return std::find(modules.begin(), modules.end(), &model->module()) == modules.end();
    });
    loaded = read_run(parts, found[0]);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  failure = shared_failure(parts.state, failure, where);
  if (!failure.empty()) throw CheckpointError("load_state: " + failure);
  python_random_ = restore_run(parts, *loaded);
  return found[0];
}

}  // namespace accelerate::detail
