#include "core/hub_cache.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "core/blanks.h"
#include "core/file.h"

namespace accelerate::detail {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> folder_in(const Environment& environment, const char* variable) {
  const auto value = environment(variable);
  if (!value || value->empty()) return std::nullopt;
  // As Python does: a shell leaves ~ alone inside quotes.
  const auto home = environment("HOME");
  return value->starts_with("~/") && home ? fs::path(*home) / value->substr(2) : fs::path(*value);
}

/// "model" or "org/model", of letters, digits and .-_ only, so that it cannot escape the cache.
bool is_hub_name(const std::string& name) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && !part.starts_with('.') && part.find("..") == std::string_view::npos &&
           std::all_of(part.begin(), part.end(),
                       [](unsigned char c) { return std::isalnum(c) || c == '.' || c == '-' || c == '_'; });
  };
  const size_t slash = name.find('/');
  return slash == std::string::npos
             ? is_part(name)
             : is_part(std::string_view(name).substr(0, slash)) && is_part(std::string_view(name).substr(slash + 1));
}

constexpr uint64_t kLongestRevision = 256;

/// The snapshot of the branch main, if it was downloaded.
std::optional<fs::path> snapshot_of(const fs::path& model) {
  std::string revision;
  try {
    const InputFile file(model / "refs" / "main");
    revision = file.text(0, std::min(file.size(), kLongestRevision));
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
  revision = without_blanks(revision.substr(0, revision.find('\n')));
  if (revision.empty() || revision.find('/') != std::string::npos) return std::nullopt;
  std::error_code ignored;
  const fs::path snapshot = model / "snapshots" / revision;
  return fs::is_directory(snapshot, ignored) ? std::optional(snapshot) : std::nullopt;
}

}  // namespace

fs::path hub_cache_folder(const Environment& environment) {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const auto cache = folder_in(environment, variable)) return *cache;
  }
  if (const auto home = folder_in(environment, "HF_HOME")) return *home / "hub";
  if (const auto caches = folder_in(environment, "XDG_CACHE_HOME")) return *caches / "huggingface" / "hub";
  return fs::path(environment("HOME").value_or("/")) / ".cache" / "huggingface" / "hub";
}

fs::path find_model(const std::string& path_or_name, const Environment& environment) {
  std::error_code ignored;
  if (!path_or_name.empty() && fs::exists(path_or_name, ignored)) return path_or_name;
  if (!is_hub_name(path_or_name))
    throw UsageError("There is no file or folder '" + path_or_name + "', and it is not the name of a model on the hub.");
  std::string folder = "models--" + path_or_name;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const fs::path cache = hub_cache_folder(environment);
  if (const auto snapshot = snapshot_of(cache / folder)) return *snapshot;
  throw UsageError("There is no file or folder '" + path_or_name + "', and no model of that name is in the hub cache " +
                   cache.string() + ". To download it from the hub: hf download " + path_or_name);
}

}  // namespace accelerate::detail
