#pragma once

#include <cstddef>
#include <string>

namespace accelerate::detail {

/// What a worker knows about its failure before it exits.
enum class FailureNote : char {
  none = 0,
  collective = 'c',  ///< a collective failed: the cause may be another rank
  own = 'o',         ///< an exception of its own is unwinding
};

/// The environment variable that tells a worker where to write its note.
inline constexpr char kFailureNotesVariable[] = "ACCELERATE_FAILURE_NOTES";

/// The failure notes of a launch's workers. A rank whose collective failed may exit at once, while the rank that caused it still
/// unwinds: the supervisor must not blame the first to exit. The notes are in the launcher's memory, so no file is left behind.
class FailureNotes {
 public:
  FailureNotes();
  ~FailureNotes() { release(); }
  FailureNotes(const FailureNotes&) = delete;
  FailureNotes& operator=(const FailureNotes&) = delete;

  /// The value of the variable for the worker at `slot`; empty when notes are not available.
  std::string place_of(size_t slot) const;
  /// The last note of the worker at `slot`.
  FailureNote of(size_t slot) const;
  /// Clears all notes, for new workers.
  void clear();
  /// For a worker that is a fork of this process: closes the launcher's descriptors.
  void release();

 private:
  int memory_ = -1;
};

/// In a worker: leaves a note for the launcher, if there is one.
void leave_failure_note(FailureNote note) noexcept;

}  // namespace accelerate::detail
