#pragma once

#include <poll.h>
#include <signal.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/output/output_plan.h>
#include "output/console_writer.h"
#include "output/descriptor_limit.h"
#include "output/last_lines.h"
#include "output/log_folder.h"
#include "output/rank_stream.h"

namespace accelerate::detail {

/// Descriptors for the stdout and stderr of a new worker; -1: it inherits the launcher's.
struct WorkerStreams {
  int out = -1;
  int err = -1;
};

/// While it lives, writing to a pipe without a reader, or past the file size limit, is an error instead of a signal.
class IgnoredWriteSignals {
 public:
  IgnoredWriteSignals();
  ~IgnoredWriteSignals() { release(); }
  IgnoredWriteSignals(const IgnoredWriteSignals&) = delete;
  IgnoredWriteSignals& operator=(const IgnoredWriteSignals&) = delete;

  /// Restores the signal dispositions.
  void release();

 private:
  struct sigaction pipe_before_ = {};
  struct sigaction size_before_ = {};
};

/// Everything that the ranks of one launch write, and the launcher itself, on its way to the launcher's stdout and stderr and to
/// files. Lines stay whole: a line of one rank never stands inside that of another, except that one longer than 1 MiB (on a
/// terminal, 16384 columns) is passed on in pieces. Nothing here ever waits, except for the disk: while a reader of ours takes
/// nothing, the ranks are not read.
///
/// A single worker without log files inherits our streams, and so do all workers when the plan names no ranks. When our stdout
/// and stderr are one file, those of a rank are one stream, so that their order is kept, unless a file of one of them is wanted.
class WorkerOutput {
 public:
  explicit WorkerOutput(const OutputPlan& plan);

  /// The ranks of this host are `first_rank` and those that follow it, from the next start on.
  void number_ranks(int first_rank);
  /// Streams for a worker that is about to be started, in place of those it had in an earlier attempt.
  /// Throws WorkerError when there can be none.
  WorkerStreams open(int local_rank, int attempt = 0);
  /// The worker has been started (or could not be): our copies of its descriptors are closed.
  void started(int local_rank);

  /// What to wait for before `serve` has something to do.
  void add_to(std::vector<pollfd>& waited_for) const;
  /// Reads and writes what can be.
  void serve();
  /// Takes all that the rank has written so far.
  void drain(int local_rank);
  /// What a report about the rank quotes; see LastLines.
  std::vector<std::string> last_lines(int local_rank) const;
  /// True when these are the last lines on our stderr: the user has just read them.
  bool was_just_written(const std::vector<std::string>& lines) const { return consoles_.back()->was_just_written(lines); }

  /// Writes a line of the launcher itself to stderr.
  void say(std::string_view line);
  /// The terminal has another size.
  void resize();
  /// Takes the rows that may still change off the terminal, until `serve` is called again.
  void clear_rows();

  /// Ends all streams; what is there now is taken. What waits for a slow reader is still written by `serve`.
  void finish();
  /// Bytes that wait to be written.
  size_t pending() const;

  /// For a worker that is a fork of this process: closes the launcher's descriptors. Nothing else may be called then.
  void release();

 private:
  struct Rank {
    std::vector<std::unique_ptr<RankStream>> streams = {};  // stdout and stderr, or one for both
    LastLines last_lines = LastLines();
  };

  ConsoleWriter& errors() { return *consoles_.back(); }
  std::unique_ptr<RankStream> make_stream(int local_rank, int attempt, bool is_error);
  std::string prefix_of(int local_rank, bool is_error) const;
  std::unique_ptr<LogFile> file_for(int local_rank, int attempt, bool is_error);
  void pass_on();
  void tell_problems();

  IgnoredWriteSignals ignored_signals_;
  OutputPlan plan_;
  const DescriptorLimit limit_;
  std::vector<std::unique_ptr<ConsoleWriter>> consoles_;  // stdout and stderr, or one where they are one file
  std::vector<Rank> ranks_;
  std::optional<LogFolder> folder_ = {};
};

}  // namespace accelerate::detail
