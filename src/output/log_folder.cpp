#include "output/log_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <accelerate/core/error.h>
#include "console/screen.h"
#include "core/escaped.h"

namespace accelerate::detail {
namespace {

std::string new_folder(const std::string& beginning) {
  std::string path = beginning + "XXXXXX";
  if (::mkdtemp(path.data()) != nullptr) return path;
  throw ConfigError(fmt::format("Cannot create the log folder {}…: {}.", beginning, ::strerrordesc_np(errno)));
}

std::string existing_folder(const std::string& path) {
  std::error_code problem;
  std::filesystem::create_directories(path, problem);
  if (!problem) return path;
  throw ConfigError(fmt::format("Cannot create the folder {} (--log_dir): {}.", path, problem.message()));
}

std::string temporary_folder() {
  std::error_code problem;
  const std::filesystem::path path = std::filesystem::temp_directory_path(problem);
  if (problem) throw ConfigError("There is no temporary folder for the logs (TMPDIR): give a folder with --log_dir.");
  return new_folder(path / "accelerate_");
}

}  // namespace

LogFolder::LogFolder(const std::string& log_dir, const std::string& run)
    : path_(new_folder((log_dir.empty() ? temporary_folder() : existing_folder(log_dir)) + "/" + run + "_")) {}

std::string LogFolder::file_of(int attempt, int local_rank, const std::string& stream) const {
  return fmt::format("{}/attempt_{}/{}/{}.log", path_, attempt, local_rank, stream);
}

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  std::error_code ignored;  // open tells
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  file_descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_descriptor_ < 0) fail();
}

LogFile::~LogFile() {
  if (file_descriptor_ >= 0) ::close(file_descriptor_);
}

void LogFile::write(const char* bytes, size_t count) {
  if (file_descriptor_ >= 0 && !write_all(file_descriptor_, {bytes, count})) fail();
}

void LogFile::fail() {
  problem_ = fmt::format("Cannot write {}: {}. The launch continues without it.", escaped(path_), ::strerrordesc_np(errno));
  if (file_descriptor_ >= 0) ::close(std::exchange(file_descriptor_, -1));
}

std::string LogFile::take_problem() { return std::exchange(problem_, {}); }

}  // namespace accelerate::detail
