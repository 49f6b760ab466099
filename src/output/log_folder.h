#pragma once

#include <string>

namespace accelerate::detail {

/// The files of one launch: <log_dir>/<run>_<random>/attempt_<n>/<local rank>/<stream>.log, as torchrun lays them out.
class LogFolder {
 public:
  /// Creates the folder of this run inside `log_dir`, or inside the temporary folder when that is empty.
  /// Throws ConfigError when it cannot be created.
  LogFolder(const std::string& log_dir, const std::string& run);

  /// The folder of this run.
  const std::string& path() const { return path_; }

  /// Where a stream of a rank is written.
  std::string file_of(int attempt, int local_rank, const std::string& stream) const;

 private:
  std::string path_;
};

/// A log file. After the first write error it is closed, and the error is kept for the caller to report.
class LogFile {
 public:
  /// Creates the file and its parent folders.
  explicit LogFile(std::string path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Appends.
  void write(const char* bytes, size_t count);

  /// The error message, returned once; else empty.
  std::string take_problem();

 private:
  void fail();

  const std::string path_;
  int file_descriptor_ = -1;
  std::string problem_ = {};
};

}  // namespace accelerate::detail
