#pragma once

#include <cstddef>
#include <string>

namespace accelerate::detail {

/// What a worker knows of its failure before it ends.
enum class FailureNote : char {
  none = 0,
  collective = 'c',  ///< a collective failed: the cause may be another rank
  own = 'o',         ///< an exception of its own is on the way out
};

/// The variable that tells a worker where its launcher looks for such a note.
inline constexpr char kFailureNotesVariable[] = "ACCELERATE_FAILURE_NOTES";

/// What the workers of a launch have noted. One whose collective failed may end at once, while the one that is the cause still
/// unwinds: who watches over them must not blame whoever ends first. The notes are in memory of the launcher, so nothing is left
/// behind.
class FailureNotes {
 public:
  FailureNotes();
  ~FailureNotes() { release(); }
  FailureNotes(const FailureNotes&) = delete;
  FailureNotes& operator=(const FailureNotes&) = delete;

  /// The value of the variable for the worker at `slot`; empty when there can be none.
  std::string place_of(size_t slot) const;
  /// What the worker at `slot` has noted last.
  FailureNote of(size_t slot) const;
  /// Forgets all, for new workers.
  void clear();
  /// For a worker that is a copy of this process: closes what is the launcher's.
  void release();

 private:
  int memory_ = -1;
};

/// In a worker: leaves a note for the launcher, if there is one.
void leave_failure_note(FailureNote note) noexcept;

}  // namespace accelerate::detail
