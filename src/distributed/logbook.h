#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distributed/shared_slot.h"

namespace at {
class Tensor;
}

namespace accelerate::detail {

/// One collective as its rank wrote it down. Plain bytes: it lies in memory that other processes read.
struct Call {
  /// 1 for the first of a group, and so on: the same on every rank that keeps in step. 0: none.
  int64_t number = 0;
  /// Nanoseconds of the host's steady clock; `ended` is 0 while it waits, and kComputing before that.
  int64_t began = 0, ended = 0;
  std::array<char, 32> name = {};
  /// The end of the caller's file name.
  std::array<char, 64> file = {};
  int32_t line = 0;
  /// -1: nothing to compare (a barrier, objects).
  int16_t dtype = -1;
  /// All dimensions; `shape` has the first ones.
  int16_t dimensions = 0;
  std::array<int64_t, 6> shape = {};
  /// What else must agree: "by sum", "from 0".
  std::array<char, 24> how = {};
  /// Of nested data: which tensor it is, and the beginning of how it is nested ("tensor 2 of 2 in {a:t,b:t,}").
  std::array<char, 48> nested = {};
  /// A hash of all that must agree between ranks: the name, dtype, shape, `how` and the nesting. 0: nothing must.
  uint64_t fingerprint = 0;

  /// The `ended` of a pass whose first collective has started while the rank still calculates.
  static constexpr int64_t kComputing = -1;
};

/// How the data of a call is nested ("{a:t,b:[tt]}"): taken once, for the calls of all its tensors.
struct Nesting {
  Nesting(std::string_view outline, size_t tensors);
  std::string_view outline;
  size_t tensors;
  uint64_t hash;
};

/// What a rank is about to call, as it is written down.
struct CallNote {
  const char* name;
  std::source_location where = {};
  /// May be null.
  const at::Tensor* tensor = nullptr;
  std::string how = {};
  /// Null for a lone tensor, and which tensor of it this is; none: all of them.
  const Nesting* nesting = nullptr;
  std::optional<size_t> leaf = {};
  /// False where ranks may be at different calls.
  bool compared = true;

  /// A rank in join_uneven_inputs takes part in whatever calls others make.
  bool must_agree() const { return compared && std::string_view(name) != "join_uneven_inputs"; }
};

/// What a rank does for long that is no collective of the group whose log it stands in.
struct Activity {
  int64_t began = 0;
  std::array<char, 64> name = {};
  /// What it works on or, with a `line`, the end of the caller's file name.
  std::array<char, 112> place = {};
  int32_t line = 0;
  /// 1: it waits for a peer of this group, and only its rank knows of that.
  int32_t waits = 0;

  /// "load_file" of "weights.safetensors".
  static Activity with(const char* name, const std::string& place);
  /// "recv from rank 0" at "train.cpp:41".
  static Activity at(const std::string& name, std::source_location where);
};

/// How a rank left its group.
enum class Ending : int64_t { none, finished, failed };

/// What one rank was doing when somebody looked.
struct RankEntry {
  Ending ending = Ending::none;
  /// When it left.
  int64_t ended = 0;
  /// Oldest first; the last may still wait.
  std::vector<Call> calls = {};
  std::optional<Activity> activity = {};
  /// Nanoseconds of the clock that all times here are of, when it was read.
  int64_t read = 0;
  /// When it joined.
  int64_t joined = 0;
};

/// What a rank logs about itself, in memory that the other processes of its host map: they can read it while it runs,
/// while it is stopped and after its death.
struct LogbookPage {
  static constexpr size_t kCalls = 32;
  static constexpr size_t kMarks = 1024;
  static constexpr size_t kDiagnosis = 64 * 1024 - 1;

  std::atomic<int64_t> joined = 0;
  std::atomic<Ending> ending = Ending::none;
  std::atomic<int64_t> ended = 0;
  std::atomic<int64_t> calls = 0;
  std::array<SharedSlot<Call>, kCalls> ring = {};
  /// The fingerprints of more calls than `ring` has: what peers compare before they make theirs (see mark_of).
  std::array<std::atomic<uint64_t>, kMarks> marks = {};
  SharedSlot<Activity> activity = {};
  /// In the page of a host's first rank: the newest call that one of its ranks has warned about.
  std::atomic<int64_t> warned = 0;
  /// There too: which rank warned last, and which reports for all, as rank + 1.
  std::atomic<int32_t> speaker = 0;
  std::atomic<int32_t> teller = 0;
  std::atomic<bool> told = false;
  std::array<char, kDiagnosis + 1> diagnosis = {};
};
/// Equal where ranks can read each other's pages and compare their calls: they may be of different builds. Count on what is added
/// here when a field or a fingerprint changes its meaning.
inline constexpr uint64_t kLogbookLayout = sizeof(LogbookPage) << 8U | 2U;
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<Ending>::is_always_lock_free, "shared between processes");

/// What stands in `marks` for call `number`: bits of its number and of its fingerprint, in one word that is never half written.
uint64_t mark_of(int64_t number, uint64_t fingerprint);
/// True when two marks in the same place are of the same call, which must agree and does not.
bool contradict(uint64_t mark, uint64_t other);

/// The page of one rank, its own or a peer's.
class Logbook {
 public:
  /// A new page. The descriptor is open as long as this lives.
  Logbook();
  /// The page of another process, by its process id and descriptor there. Nothing when it cannot be had.
  static std::unique_ptr<Logbook> of_peer(int64_t pid, int descriptor);
  ~Logbook();
  Logbook(const Logbook&) = delete;
  Logbook& operator=(const Logbook&) = delete;

  int descriptor() const { return descriptor_; }
  LogbookPage& page() const { return *page_; }

  /// Writes down that a call begins. Returns its number.
  int64_t enter(const CallNote& call);
  /// The same for a pass of which only the first collective begins: the rank still calculates.
  int64_t announce(const CallNote& call);
  /// From now on the rank waits in what it has announced.
  void begin_waiting(int64_t number);
  /// What stands in `marks` for one of the last calls.
  uint64_t mark(int64_t number) const;
  /// Writes down that a call has ended.
  void leave(int64_t number);
  /// The next call has the number after `number`, which is not less than that of the last one.
  void skip_to(int64_t number);
  /// Writes down what this rank does now, beside or within what it did already. Returns its number, for the end.
  int64_t begin_activity(Activity activity);
  void end_activity(int64_t number);
  void end(Ending ending);

  RankEntry read() const;

 private:
  explicit Logbook(int descriptor);
  int64_t write(const CallNote& call, int64_t ended);
  template <class Change>
  void change(int64_t number, Change change);

  int descriptor_;
  LogbookPage* page_;
  std::mutex writing_;
  std::vector<std::pair<int64_t, Activity>> activities_;  // the newest last, which is what the page shows
  int64_t last_activity_ = 0;
};

/// Now, by the clock of all times in logbooks: the same for every process of a host.
int64_t logbook_now();

}  // namespace accelerate::detail
