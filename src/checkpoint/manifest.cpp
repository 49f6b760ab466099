#include "checkpoint/manifest.h"

#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/escaped.h"
#include "core/file.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

// A manifest lists a few dozen files; whatever is larger was not written by us.
constexpr uint64_t kLargestManifest = uint64_t{64} << 20;

[[noreturn]] void refuse_manifest(const std::string& file, const std::string& why) {
  throw CheckpointError(escaped(fmt::format("{} is not a manifest of a checkpoint: {}.", file, why)));
}

FileRecord parse_record(const std::string& name, const json& record, const std::string& file) {
  for (const auto& part : std::filesystem::path(name + "/")) {
    if (part == ".." || part == "." || part == "/")
      refuse_manifest(file, fmt::format("'{}' is not a path below its folder", name));
  }
  if (!record.is_object() || !record.contains("bytes") || !record["bytes"].is_number_unsigned() || !record.contains("crc32") ||
      !record["crc32"].is_number_unsigned() || record["crc32"].get<uint64_t>() > UINT32_MAX) {
    refuse_manifest(file, fmt::format("'{}' lacks its bytes or crc32", name));
  }
  return {name, record["bytes"].get<uint64_t>(), record["crc32"].get<uint32_t>()};
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  json files = json::object();
  for (const auto& record : manifest.files) {
    files[record.name] = {{"bytes", record.bytes}, {"crc32", record.crc32}};
    try {
      json(record.name).dump();
    } catch (const json::exception&) {
      throw CheckpointError(fmt::format("A checkpoint contains a file whose name is not UTF-8: {}. Rename it.",
                                        json(record.name).dump(-1, ' ', true, json::error_handler_t::replace)));
    }
  }
  return json{{"format", 1}, {"num_processes", manifest.num_processes}, {"files", files}}.dump(2) + "\n";
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) refuse_manifest(file, "it is not a JSON object");
  if (parsed.value("format", json()) != 1) refuse_manifest(file, "its format is not 1; a newer version may have written it");
  const auto processes = parsed.value("num_processes", json());
  if (!processes.is_number_unsigned() || processes.get<uint64_t>() < 1 || processes.get<uint64_t>() > INT32_MAX) {
    refuse_manifest(file, "num_processes is missing or invalid");
  }
  const auto files = parsed.value("files", json());
  if (!files.is_object()) refuse_manifest(file, "the list of files is missing");
  Manifest manifest{.num_processes = processes.get<int>()};
  for (const auto& [name, record] : files.items()) manifest.files.push_back(parse_record(name, record, file));
  return manifest;
}

std::optional<Manifest> read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / kManifestName;
  std::error_code problem;
  const bool there = std::filesystem::exists(path, problem);
  if (problem) throw FileAccessError(fmt::format("Cannot access {}: {}.", path.string(), problem.message()));
  if (!there) return std::nullopt;
  const InputFile file(path);
  if (file.size() > kLargestManifest) refuse_manifest(file.name(), "it is too large to be one");
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return parse_manifest(text, file.name());
}

std::string find_defect(const std::filesystem::path& folder, const Manifest& manifest) {
  for (const auto& record : manifest.files) {
    std::error_code problem;
    const auto bytes = std::filesystem::file_size(folder / record.name, problem);
    if (problem && problem != std::errc::no_such_file_or_directory && problem != std::errc::not_a_directory &&
        problem != std::errc::is_a_directory && problem != std::errc::not_supported)
      throw FileAccessError(fmt::format("Cannot access {}: {}.", (folder / record.name).string(), problem.message()));
    if (problem) return fmt::format("{} is missing", escaped(record.name));
    if (bytes != record.bytes) return fmt::format("{} has {} bytes instead of {}", escaped(record.name), bytes, record.bytes);
  }
  return "";
}

}  // namespace accelerate::detail
