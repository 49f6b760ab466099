#pragma once

#include <stdexcept>
#include <string>

namespace accelerate {

/// Root of everything this library throws. A message says what was given, what was expected and what to do. It may be printed
/// anywhere: characters of file contents and names that a terminal would obey, or that nobody sees, are escaped in it.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
};

/// A call that cannot mean anything: a wrong argument, a wrong order of calls.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// A configuration file or environment variable that is wrong, named with its value.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Something went wrong between processes. Names the rank and the call. After a collective that failed half-way the group is
/// unusable, and every later call on it says so.
class DistributedError : public Error {
 public:
  using Error::Error;
};

/// A file that is damaged, incomplete, or does not fit what it is loaded into. Names the file.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process that this program started has failed. Names the rank.
class WorkerError : public Error {
 public:
  explicit WorkerError(const std::string& message, int rank = -1, int signal = 0)
      : Error(message), rank_(rank), signal_(signal) {}

  /// The rank that failed first, or -1 when it was none of them.
  int rank() const { return rank_; }
  /// The signal that ended it, or 0.
  int signal() const { return signal_; }

 private:
  int rank_;
  int signal_;
};

}  // namespace accelerate
