#pragma once

#include <string>

namespace accelerate::detail {

/// The files of one launch: <log_dir>/<run>_<random>/attempt_<n>/<local rank>/<stream>.log, as torchrun lays them out.
class LogFolder {
 public:
  /// Makes the folder of this run inside `log_dir`, or inside a new one among the temporary files when that is empty.
  /// Throws ConfigError when it cannot be made.
  LogFolder(const std::string& log_dir, const std::string& run);

  /// The folder of this run.
  const std::string& path() const { return path_; }

  /// Where a stream of a rank is written.
  std::string file_of(int attempt, int local_rank, const std::string& stream) const;

 private:
  std::string path_;
};

/// A file that is written to for as long as it can be: the first failure ends it, and is kept for whoever wants to say it.
class LogFile {
 public:
  /// Makes the file, its folders too.
  explicit LogFile(std::string path);
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  /// Appends.
  void write(const char* bytes, size_t count);

  /// One sentence about the failure, once; else empty.
  std::string take_problem();

 private:
  void fail();

  const std::string path_;
  int file_descriptor_ = -1;
  std::string problem_ = {};
};

}  // namespace accelerate::detail
