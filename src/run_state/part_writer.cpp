#include "run_state/part_writer.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoint/staged_folder.h"
#include "core/crc32.h"
#include "core/file.h"
#include "core/in_parallel.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Counts and sums what goes into a file.
class SummedSink final : public ByteSink {
 public:
  SummedSink(ByteSink& sink, FileRecord& record) : sink_(sink), record_(record) {}
  void write(const void* bytes, uint64_t size) override { write_summed(bytes, size); }
  uint32_t write_summed(const void* bytes, uint64_t size) override {
    const uint32_t sum = sink_.write_summed(bytes, size);
    record_.crc32 = combine_crc32(record_.crc32, sum, size);
    record_.bytes += size;
    return sum;
  }

 private:
  ByteSink& sink_;
  FileRecord& record_;
};

FileRecord write_file(const PendingFile& file, const fs::path& folder) {
  FileRecord record{.name = file.name};
  const fs::path path = folder / file.name;
  if (path.parent_path() != folder) make_folder(path.parent_path());
  OutputFile output(path);
  SummedSink sink(output, record);
  file.write(sink);
  output.place();  // the rank that commits the checkpoint makes the folders durable
  return record;
}

}  // namespace

PartReport write_part(RunSnapshot& snapshot, const std::string& staging, int rank) {
  PartReport report{.rank = rank};
  try {
    snapshot.copies.make();
    report.files.resize(snapshot.files.size());
    in_parallel(snapshot.files.size(), [&](size_t i) { report.files[i] = write_file(snapshot.files[i], staging); });
  } catch (const std::exception& error) {
    report.failure = *error.what() != '\0' ? error.what() : "an exception without a message";
  } catch (...) {
    report.failure = "an exception that is not a std::exception";
  }
  if (report.failure.empty()) return report;
  std::error_code ignored;
  for (const auto& file : snapshot.files) fs::remove(fs::path(staging) / file.name, ignored);
  return report;
}

std::string report_text(const PartReport& report) {
  json text = {{"rank", report.rank}, {"failure", report.failure}, {"files", json::array()}};
  for (const auto& record : report.files) text["files"].push_back({record.name, record.bytes, record.crc32});
  // A name of a file that is not UTF-8 must not keep the others from hearing what went wrong with it.
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

PartReport parse_report(const std::string& text) {
  const json parsed = json::parse(text);
  PartReport report{.rank = parsed.at("rank"), .failure = parsed.at("failure")};
  for (const auto& record : parsed.at("files")) report.files.push_back({record.at(0), record.at(1), record.at(2)});
  return report;
}

std::string first_failure(const std::vector<PartReport>& reports) {
  const auto failed = std::find_if(reports.begin(), reports.end(), [](const auto& report) { return !report.failure.empty(); });
  return failed == reports.end() ? "" : fmt::format("rank {}: {}", failed->rank, failed->failure);
}

}  // namespace accelerate::detail
