#pragma once

#include <poll.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// The launcher's stdout or stderr, written to without blocking: bytes that its reader has not taken yet are queued.
/// The descriptor is shared with other processes: if it cannot be reopened for us alone, it is non-blocking only while we
/// write. SIGPIPE must be ignored.
class OutputDestination {
 public:
  explicit OutputDestination(int file_descriptor);
  ~OutputDestination();
  OutputDestination(const OutputDestination&) = delete;
  OutputDestination& operator=(const OutputDestination&) = delete;

  /// Adds to the queue; does nothing after a write error.
  void put(std::string_view bytes);
  /// Writes what can be written now.
  void write_some();
  /// Bytes that wait.
  size_t queued() const { return queue_.size() - written_; }
  /// What to wait for: room for the queue, and the end of a pipe's reader.
  void add_to(std::vector<pollfd>& waited_for) const;

  /// The reader of this pipe or socket has closed it: writes are lost.
  bool reader_is_gone() const { return reader_is_gone_; }
  /// The errno of the write error, returned once; else 0.
  int take_error() { return std::exchange(untold_error_, 0); }

 private:
  bool can_take_bytes() const;
  ssize_t write_piece(std::string_view bytes) const;

  const int file_descriptor_;
  int own_ = -1;  // the same file, opened once more so that it can be non-blocking for us alone
  bool is_file_ = false;
  bool is_pipe_ = false;
  bool reader_is_gone_ = false;
  bool is_lost_ = false;
  int untold_error_ = 0;
  std::string queue_ = {};
  size_t written_ = 0;
};

}  // namespace accelerate::detail
