#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

namespace at {
class Tensor;
}

namespace accelerate {

/// One exchange as its rank wrote it down. Plain bytes: it lies in memory that other processes read.
struct Call {
  /// 1 for the first of a group, and so on: the same on every rank that keeps in step. 0: none.
  int64_t number = 0;
  /// Nanoseconds of the machine's steady clock; `ended` is 0 while it waits.
  int64_t began = 0, ended = 0;
  std::array<char, 32> name = {};
  /// The end of the caller's file name.
  std::array<char, 112> file = {};
  int32_t line = 0;
  /// -1: nothing to compare (a barrier, objects).
  int16_t dtype = -1;
  /// All dimensions; `shape` has the first ones.
  int16_t dimensions = 0;
  std::array<int64_t, 6> shape = {};
};

/// What a rank does for long that is no exchange.
struct Activity {
  int64_t began = 0;
  std::array<char, 32> name = {};
  std::array<char, 112> place = {};
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

/// Bytes that one process writes and others read without waiting for it: a reader sees a whole value or knows that it did not.
template <class Plain>
class SharedSlot {
  static_assert(std::is_trivially_copyable_v<Plain> && sizeof(Plain) % sizeof(uint64_t) == 0);

 public:
  void store(const Plain& value) {
    uint64_t words[kWords];
    std::memcpy(words, &value, sizeof(value));
    const auto version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Each word is released after the odd version: who sees a new word sees that version too, and reads again.
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  /// Nothing when the writer was in the middle of it, and stays there: it died.
  std::optional<Plain> load() const {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const auto version = version_.load(std::memory_order_acquire);
      uint64_t words[kWords];
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (version % 2 == 1 || version_.load(std::memory_order_relaxed) != version) continue;
      Plain value;
      std::memcpy(&value, words, sizeof(value));
      return value;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kWords = sizeof(Plain) / sizeof(uint64_t);
  std::atomic<uint64_t> version_ = 0;
  std::array<std::atomic<uint64_t>, kWords> words_ = {};
};

/// What a rank writes down about itself, in memory that the other processes of its machine map: they can read it while it runs,
/// while it is stopped and after its death.
struct LogbookPage {
  static constexpr size_t kCalls = 32;
  static constexpr size_t kStory = 64 * 1024 - 1;

  std::atomic<int64_t> joined = 0;
  std::atomic<Ending> ending = Ending::none;
  std::atomic<int64_t> ended = 0;
  std::atomic<int64_t> calls = 0;
  std::array<SharedSlot<Call>, kCalls> ring = {};
  SharedSlot<Activity> activity = {};
  /// In the page of a machine's first rank: the newest call that one of its ranks has warned about.
  std::atomic<int64_t> warned = 0;
  /// There too: who tells the story for all, as its index + 1.
  std::atomic<int32_t> teller = 0;
  std::atomic<bool> told = false;
  std::array<char, kStory + 1> story = {};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<Ending>::is_always_lock_free, "shared between processes");

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

  /// Writes down that a call begins. `tensor` may be null. Returns its number.
  int64_t enter(const char* call, std::source_location where, const at::Tensor* tensor);
  /// And that it has ended.
  void leave(int64_t number);
  /// The next call has the number after `number`, which is not less than that of the last one.
  void skip_to(int64_t number);
  void begin_activity(const char* name, const std::string& place);
  void end_activity();
  void end(Ending ending);

  RankEntry read() const;

 private:
  explicit Logbook(int descriptor);
  int descriptor_;
  LogbookPage* page_;
  std::mutex writing_;
};

/// While it lives, the notes of the rank that this thread made say that it is busy with something that is no exchange.
class Busy {
 public:
  Busy(const char* name, const std::string& place);
  ~Busy();
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

  /// From now on this thread is the one of the rank that writes `logbook`.
  static void belongs_to(const std::shared_ptr<Logbook>& logbook);

 private:
  std::shared_ptr<Logbook> logbook_;
};

/// Now, by the clock of all times in logbooks: the same for every process of a machine.
int64_t logbook_now();

}  // namespace accelerate
