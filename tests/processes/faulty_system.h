#pragma once

#include <functional>
#include <string>
#include <vector>

/// An operating system that fails on demand: in programs that link it, the calls that a save or a load makes of the C library
/// come here first.
namespace faulty_system {

/// Sets the processes that the functions below kill.
void set_victims(std::vector<int> processes);

/// Sends SIGKILL to the victims, and does not return in one of them.
void kill_victims();

/// Kills the victims as soon as this process asks for a change of the file system after `changes` others.
void kill_victims_after(int changes);

/// Tells whether this process has killed the victims.
bool has_killed_victims();

/// Makes this process the only victim, and kills it as soon as it asks for a change of the file system after `changes` others.
void die_after(int changes);

/// Keeps threads other than the main one from changing the file system until `may_write`, which they call, returns true.
void hold_threads_until(std::function<bool()> may_write);

/// Refuses the call that this process makes after `calls` others, with errno `reason`; if `lasting`, also all calls after that
/// one, as of a disk that is full and stays so.
void refuse_after(int calls, int reason, bool lasting);

/// Ends refuse_after, and returns whether a call was refused.
bool end_refusal();

/// Allows this process `count` more threads; below 0: any number.
void limit_threads(int count);

/// What a file system may lack.
struct Lacks {
  /// The atomic swap of two folders, as NFS does.
  bool exchange = false;
  /// Hard links.
  bool links = false;
  /// Locks of files.
  bool locks = false;
};

/// Sets what the file system lacks from now on; at first that is what ACCELERATE_TEST_NO_EXCHANGE and ACCELERATE_TEST_NO_LOCKS
/// say.
void set_lacks(const Lacks& lacks);

/// Hides the reports of all ranks, as a network file system does that does not show yet what other hosts have written.
void hide_reports();

/// Removes `file` when a manifest gets its name, as another run could; with an empty name, nothing.
void remove_with_manifest(const std::string& file);

/// Returns how many files and folders this process has synced.
int synced_files();

}  // namespace faulty_system
