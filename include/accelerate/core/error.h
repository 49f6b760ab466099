#pragma once

#include <stdexcept>
#include <string>

namespace accelerate {

/// Base class of all exceptions of this library. A message says what was given, what was expected and what to do. It is safe to
/// print: control and invisible characters from file contents and names are escaped.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message);
};

/// Incorrect use of the API: an invalid argument, or calls in the wrong order.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// An invalid configuration file or environment variable, named with its value.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A failure in distributed communication. Names the rank and the call. After a collective failed half-way the process group is
/// unusable, and every later call on it throws this error.
class DistributedError : public Error {
 public:
  using Error::Error;
};

/// A file that is corrupt, incomplete, or does not match what it is loaded into. Names the file.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// A process that this program started has failed. Names the rank.
class WorkerError : public Error {
 public:
  explicit WorkerError(const std::string& message, int rank = -1, int signal = 0)
      : Error(message), rank_(rank), signal_(signal) {}

  /// The rank that failed first, or -1 when no rank did.
  int rank() const { return rank_; }
  /// The signal that killed it, or 0.
  int signal() const { return signal_; }

 private:
  int rank_;
  int signal_;
};

}  // namespace accelerate
