#include "distributed/communicator.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "core/source_line.h"
#include "launch/failure_notes.h"
#include "rendezvous/bounded.h"

namespace accelerate {
namespace {

/// Objects up to this size travel in one collective, their length in front; larger ones need a second. Most are small,
/// and a collective costs far more than a few hundred bytes.
constexpr int64_t kInlineBytes = 1024 - static_cast<int64_t>(sizeof(int64_t));

/// How long the process that serves the store waits at its end for the others to reach theirs.
constexpr std::chrono::seconds kHostPatience{30};
/// And how often it looks whether there is anybody left to wait for.
constexpr std::chrono::milliseconds kHostLook{500};

/// How often a rank in a collective looks whether the group is lost, and every how many looks for ranks that died.
constexpr std::chrono::milliseconds kLostLook{100};
constexpr int kLooksForDead = 10;

/// What debug mode does before a call: the same for all of them.
constexpr const char* kComparison = "comparing calls";

/// How long a rank that waits for a key sleeps before it looks again: at first, and at most.
constexpr std::chrono::microseconds kFirstPause{500}, kLongestPause{20000};

at::Tensor byte_buffer(int64_t size) { return at::empty({size}, at::TensorOptions().dtype(at::kByte)); }

std::string from_rank(int rank) { return "from " + std::to_string(rank); }

/// c10d notes a group's first collective in a table of the whole process without a lock (2.11), so groups used by several
/// threads start theirs one at a time.
std::mutex& starting() {
  static std::mutex mutex;
  return mutex;
}

c10::intrusive_ptr<c10d::Work> start_broadcast(c10d::Backend& backend, const at::Tensor& tensor, int from) {
  c10d::BroadcastOptions options;
  options.rootRank = from;
  std::vector<at::Tensor> tensors = {tensor};
  return backend.broadcast(tensors, options);
}

c10::intrusive_ptr<c10d::Work> start_all_reduce(c10d::Backend& backend, const at::Tensor& tensor,
                                                c10d::ReduceOp::RedOpType operation) {
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  std::vector<at::Tensor> tensors = {tensor};
  return backend.allreduce(tensors, options);
}

/// What a call of the library's own gives, or of the user's program.
CallNote note_of(const char* call, std::source_location where, const Given& given) {
  return {.name = call, .where = where, .tensor = given.tensor, .how = given.how, .nesting = given.nesting, .leaf = given.leaf};
}

CallNote note_of(const char* call, std::source_location where, const at::Tensor& sent, std::string how, const Given* given) {
  if (given != nullptr) return note_of(call, where, *given);
  return {.name = call, .where = where, .tensor = &sent, .how = std::move(how)};
}

/// What can be neither used nor ended. Held, so that it is not taken for a leak.
template <class Thing>
void keep_for_ever(Thing thing) {
  static std::mutex mutex;
  static auto* kept = new std::vector<Thing>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(thing));
}

thread_local void (*refuse_host_collective)() = nullptr;

void shut_down(c10d::Backend& backend) noexcept {
  try {
    backend.shutdown();
  } catch (const std::exception&) {
    // It failed before, or a peer did: there is nothing left to end.
  }
}

}  // namespace

NoHostCollectives::NoHostCollectives(void (*refuse)()) : before_(std::exchange(refuse_host_collective, refuse)) {}

NoHostCollectives::~NoHostCollectives() { refuse_host_collective = before_; }

bool NoHostCollectives::refused() { return refuse_host_collective != nullptr; }

Communicator::Communicator(GroupParts parts)
    : parts_(std::move(parts)), rank_(parts_.group->getRank()), size_(parts_.group->getSize()) {
  try {
    cpu_backend_ = parts_.group->getBackend(at::kCPU);
  } catch (const std::exception&) {
    throw UsageError(
        "The process group handed in has no backend for CPU tensors, and objects and barriers travel as such: make it with gloo "
        "as well.");
  }
}

Communicator::~Communicator() {
  // A copy of the process (fork) has none of the group's threads to wait for, and nothing to say in its name.
  if (::getpid() != process_) {
    keep_for_ever(std::move(collective_watch_));
    keep_for_ever(std::move(detective_));
    keep_for_ever(std::move(logbook_));
    keep_for_ever(std::move(parts_));
    keep_for_ever(std::move(cpu_backend_));
    return;
  }
  const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
  if (collective_watch_ && collective_watch_->abandoned()) abandoned_ = true;
  collective_watch_.reset();
  // Before any connection is closed, so that whoever sees it closed sees why.
  if (logbook_) logbook_->end(failed_ || unwinding ? Ending::failed : Ending::finished);
  if (unwinding && !failed_) leave_failure_note(FailureNote::own);
  if (!parts_.owned) return;
  // Nobody waits for the end of a group that failed.
  if (size_ > 1 && !failed_) signal("end/" + std::to_string(rank_), detective_ ? detective_->last_report() : "1");
  end_group();
  // A rank that still waits on a key when its host leaves sees a lost connection, so the host is the last to go. But an exception
  // on its way out of here waits for nobody.
  if (size_ > 1 && parts_.first_serves_store && rank_ == 0 && !failed_ && !unwinding) serve_until_all_have_ended();
}

/// Gloo and NCCL end before the store they met in.
void Communicator::end_group() {
  if (abandoned_) {
    // Gloo's end would wait for the collective that cannot end.
    keep_for_ever(parts_);
    keep_for_ever(cpu_backend_);
    return;
  }
  if (parts_.device_backend) shut_down(*parts_.device_backend);
  parts_.device_backend.reset();
  cpu_backend_.reset();
  parts_.group.reset();
}

void Communicator::serve_until_all_have_ended() noexcept {
  std::vector<std::string> ends;
  for (int rank = 0; rank < size_; ++rank) ends.push_back("end/" + std::to_string(rank));
  const auto deadline = std::chrono::steady_clock::now() + kHostPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      return parts_.store->wait(ends, kHostLook);
    } catch (const std::exception&) {
      // Not yet. Who died will never say so.
      if (detective_ && detective_->nobody_is_left()) return;
    }
  }
}

void Communicator::watch(const std::string& machine, std::chrono::milliseconds threshold, std::source_location where) {
  leave_failure_note(FailureNote::none);  // what failed before this group was made has been dealt with
  if (size_ == 1) return;
  auto logbook = std::make_shared<Logbook>();
  const auto card = ProcessCard::of_this_process(machine, logbook->descriptor());
  DetectiveParts parts{.rank = rank_,
                       .logbook = logbook,
                       .store = parts_.store,
                       .first_serves_store = parts_.first_serves_store,
                       .threshold = threshold};
  for (const auto& bytes : all_gather_bytes({reinterpret_cast<const char*>(&card), sizeof(card)}, "joining", where)) {
    const bool same_size = bytes.size() == sizeof(card);
    if (same_size) std::memcpy(&parts.cards.emplace_back(), bytes.data(), sizeof(card));
    if (!same_size || parts.cards.back().layout != card.layout)
      fail("joining", where, "a peer is of another version of this library: build the programs of all ranks with the same one");
  }
  detective_ = std::make_shared<Detective>(std::move(parts));
  // Who leaves at once must not be gone before the others hold its notes.
  const auto see_everyone = all_gather_bytes(detective_->sees_everyone() ? "yes" : "no", "joining", where);
  hosts_compare_ = std::find(see_everyone.begin(), see_everyone.end(), "no") != see_everyone.end();
  if (hosts_compare_ && !parts_.owned) {
    try {
      gather_marks(0);
    } catch (const std::exception&) {  // not by this backend, which is the same on all ranks
      hosts_compare_ = false;
    }
  }
  Busy::belongs_to(logbook);
  logbook_ = std::move(logbook);
}

std::string Communicator::backend_name(at::DeviceType device) { return backend_for(device).getBackendName(); }

c10d::Backend& Communicator::backend_for(at::DeviceType device) {
  if (device == at::kCPU) return *cpu_backend_;
  try {
    return *parts_.group->getBackend(device);
  } catch (const std::exception&) {
    throw UsageError("The process group has no backend for " + c10::DeviceTypeName(device, true) +
                     " tensors: make it with one, or use the CPU (.cpu = true).");
  }
}

void Communicator::fail(const char* call, std::source_location where, const std::string& reason, int64_t mismatch) {
  std::string story =
      std::string(call) + at_line(where) + " failed on rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": ";
  story += detective_ ? detective_->explain(reason, mismatch) : reason;
  if (detective_ && !reason.empty()) story += "\nThe backend's words: " + reason;
  if (logbook_) logbook_->end(Ending::failed);
  leave_failure_note(FailureNote::collective);  // the launcher must not blame this rank for ending before the cause
  {
    const std::lock_guard lock(story_mutex_);
    if (!failed_.exchange(true)) story_ = story;
  }
  throw DistributedError(story);
}

void Communicator::check_usable(const char* call, std::source_location where) {
  if (!failed_) return;
  const std::lock_guard lock(story_mutex_);
  throw DistributedError(std::string(call) + at_line(where) + " cannot run: the group is unusable since " + story_);
}

bool Communicator::is_lost(int look) const { return look % kLooksForDead == 0 ? detective_->is_lost() : detective_->is_told(); }

void Communicator::check_not_lost() const {
  if (logbook_ && detective_->is_told()) throw GroupLost();
}

void Communicator::compare_on_host(int64_t number, const CallNote& call) const {
  if (detective_->is_contradicted(number)) throw GroupLost(number);
  if (call.must_agree()) detective_->let_others_catch_up(number, parts_.timeout);
}

std::vector<uint64_t> Communicator::gather_marks(uint64_t mine) {
  at::Tensor sent = byte_buffer(8 * size_).view(at::kLong), received = byte_buffer(8 * size_).view(at::kLong);
  sent.fill_(static_cast<int64_t>(mine));
  // Not an all-gather: nothing else in the group is sent in this way, so nothing else can be taken for it.
  std::vector<int64_t> evenly;
  std::unique_lock lock(starting());
  auto work = cpu_backend_->alltoall_base(received, sent, evenly, evenly);
  lock.unlock();
  wait_watchfully(*work);
  const auto* theirs = received.const_data_ptr<int64_t>();
  return {theirs, theirs + size_};
}

void Communicator::compare_between_hosts(int64_t number) {
  const uint64_t mine = logbook_->mark(number);
  const auto marks = gather_marks(mine);
  if (std::any_of(marks.begin(), marks.end(), [mine](uint64_t mark) { return contradict(mine, mark); })) throw GroupLost(number);
}

template <class Action>
void Communicator::guarded(const CallNote& call, Action&& action) {
  check_usable(call.name, call.where);
  int64_t number = 0;
  try {
    if (logbook_) {
      number = logbook_->enter(call);
      compare_on_host(number, call);
    }
    action(number);
  } catch (const UsageError&) {
    if (logbook_) logbook_->leave(number);
    throw;  // nothing has been sent
  } catch (const GroupLost& lost) {
    fail(call.name, call.where, "", lost.mismatch);
  } catch (const std::exception& error) {
    if (refuse_host_collective == nullptr) fail(call.name, call.where, words_of(error));
    if (logbook_) logbook_->leave(number);
    throw;
  }
  if (logbook_) logbook_->leave(number);
}

template <class Start>
void Communicator::run_collective(at::DeviceType device, CallNote call, bool between_hosts, Start&& start) {
  if (device == at::kCPU && refuse_host_collective != nullptr) refuse_host_collective();
  c10d::Backend& backend = backend_for(device);
  const bool on_host = &backend == cpu_backend_.get();
  if (!on_host) call.how += (call.how.empty() ? "on " : " on ") + c10::DeviceTypeName(device, true);
  guarded(call, [&](int64_t number) {
    check_not_lost();
    // While a step is recorded nothing is sent.
    if (between_hosts && hosts_compare_ && refuse_host_collective == nullptr) compare_between_hosts(number);
    std::unique_lock lock(starting(), std::defer_lock);
    if (on_host) lock.lock();  // only gloo starts without waiting for anybody
    auto work = start(backend);
    if (lock) lock.unlock();
    if (detective_ && on_host) {
      wait_watchfully(*work);
    } else {
      work->wait();
    }
  });
}

/// Gloo notices a dead peer only on the connections to it, and not while a child of that peer holds them open. Who waits for
/// another one looks now and then whether the group is lost.
void Communicator::wait_watchfully(c10d::Work& work) {
  for (int look = 1;; ++look) {
    try {
      work.wait(kLostLook);
      return;
    } catch (const std::exception&) {
      if (work.isCompleted()) {
        work.wait();  // it failed, or ended just now
        return;
      }
    }
    if (!is_lost(look)) continue;
    abandoned_ = true;
    throw std::runtime_error("The collective cannot end, since the group is lost.");
  }
}

void Communicator::align_calls(const char* call, std::source_location where) {
  at::Tensor number = byte_buffer(sizeof(int64_t)).view(at::kLong);
  *number.data_ptr<int64_t>() = logbook_ ? logbook_->page().calls.load() : 0;
  run_collective(at::kCPU, {.name = call, .where = where, .compared = false}, false,
                 [&](c10d::Backend& backend) { return start_all_reduce(backend, number, c10d::ReduceOp::MAX); });
  if (logbook_) logbook_->skip_to(*number.data_ptr<int64_t>() + 1);
}

c10::intrusive_ptr<c10d::Work> Communicator::start(const std::function<c10::intrusive_ptr<c10d::Work>(c10d::Backend&)>& action) {
  const std::lock_guard lock(starting());
  return action(*cpu_backend_);
}

void Communicator::agree(const char* call, const std::string& what, std::source_location where) {
  // The place is told and not compared: the same call may stand in two branches of an if.
  const auto wishes = all_gather_bytes(std::string(call) + "\n" + what + "\n" + at_line(where), kComparison, where);
  const auto field = [](const std::string& wish, int number) {
    size_t begin = 0;
    while (number-- > 0) begin = wish.find('\n', begin) + 1;
    return wish.substr(begin, wish.find('\n', begin) - begin);
  };
  const auto all_have_the_same = [&](int number) {
    return std::all_of(wishes.begin(), wishes.end(),
                       [&](const auto& wish) { return field(wish, number) == field(wishes.front(), number); });
  };
  const bool same_call = all_have_the_same(0);
  if (same_call && all_have_the_same(1)) return;
  std::string story = std::string(call) + at_line(where) + " cannot run: ";
  story += same_call
               ? "the ranks do not agree on what to send. Make shapes and dtypes equal, for example with pad_across_processes."
               : "the processes make different calls. All must make the same calls in the same order.";
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const std::string& wish = wishes[rank];
    story += "\n  - Rank " + std::to_string(rank) + ": " + field(wish, 0) + (field(wish, 1).empty() ? "" : " of ") +
             field(wish, 1) + field(wish, 2);
  }
  throw DistributedError(story);
}

void Communicator::barrier(const char* call, std::source_location where, const Given& given) {
  run_collective(at::kCPU, note_of(call, where, given), true, [](c10d::Backend& backend) { return backend.barrier(); });
}

void Communicator::all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                              const Given* given) {
  run_collective(input.device().type(), note_of(call, where, input, "", given), given != nullptr,
                 [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
}

// Objects: what one rank sends may be longer than what another does.
void Communicator::gather_bytes(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where) {
  run_collective(at::kCPU, {.name = call, .where = where}, true,
                 [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
}

void Communicator::all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call,
                              std::source_location where, const Given* given) {
  run_collective(tensor.device().type(), note_of(call, where, tensor, "", given), given != nullptr,
                 [&](c10d::Backend& backend) { return start_all_reduce(backend, tensor, operation); });
}

void Communicator::broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where, const Given* given) {
  run_collective(tensor.device().type(), note_of(call, where, tensor, from_rank(from), given), given != nullptr,
                 [&](c10d::Backend& backend) { return start_broadcast(backend, tensor, from); });
}

void Communicator::send_bytes(at::Tensor& tensor, int from, const char* call, std::source_location where) {
  run_collective(at::kCPU, {.name = call, .where = where, .how = from_rank(from)}, true,
                 [&](c10d::Backend& backend) { return start_broadcast(backend, tensor, from); });
}

std::vector<std::string> Communicator::all_gather_bytes(std::string_view bytes, const char* call, std::source_location where) {
  const auto length = static_cast<int64_t>(bytes.size());
  const auto header = static_cast<int64_t>(sizeof(length));
  const int64_t width = header + kInlineBytes;
  at::Tensor mine = byte_buffer(width), all = byte_buffer(width * size_);
  std::memcpy(mine.data_ptr(), &length, sizeof(length));
  std::memcpy(mine.data_ptr<uint8_t>() + header, bytes.data(), static_cast<size_t>(std::min(length, kInlineBytes)));
  gather_bytes(all, mine, call, where);

  std::vector<int64_t> lengths(static_cast<size_t>(size_));
  std::vector<std::string> result(static_cast<size_t>(size_));
  int64_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const uint8_t* row = all.data_ptr<uint8_t>() + rank * width;
    std::memcpy(&lengths[rank], row, sizeof(int64_t));
    if (lengths[rank] < 0) fail(call, where, "the length of rank " + std::to_string(rank) + "'s object arrived damaged");
    longest = std::max(longest, lengths[rank]);
    if (lengths[rank] <= kInlineBytes)
      result[rank].assign(reinterpret_cast<const char*>(row + header), static_cast<size_t>(lengths[rank]));
  }
  if (longest <= kInlineBytes) return result;

  at::Tensor large = byte_buffer(longest), larges = byte_buffer(longest * size_);
  std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  gather_bytes(larges, large, call, where);
  for (int rank = 0; rank < size_; ++rank) {
    result[rank].assign(reinterpret_cast<const char*>(larges.data_ptr<uint8_t>() + rank * longest),
                        static_cast<size_t>(lengths[rank]));
  }
  return result;
}

std::string Communicator::broadcast_bytes(std::string_view bytes, int from, const char* call, std::source_location where) {
  auto length = static_cast<int64_t>(bytes.size());
  const auto header = static_cast<int64_t>(sizeof(length));
  at::Tensor buffer = byte_buffer(header + kInlineBytes);
  if (rank_ == from) {
    std::memcpy(buffer.data_ptr(), &length, sizeof(length));
    std::memcpy(buffer.data_ptr<uint8_t>() + header, bytes.data(), static_cast<size_t>(std::min(length, kInlineBytes)));
  }
  send_bytes(buffer, from, call, where);
  std::memcpy(&length, buffer.data_ptr(), sizeof(length));
  if (length <= kInlineBytes)
    return {reinterpret_cast<const char*>(buffer.data_ptr<uint8_t>() + header), static_cast<size_t>(length)};

  at::Tensor large = byte_buffer(length);
  if (rank_ == from) std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  send_bytes(large, from, call, where);
  return {reinterpret_cast<const char*>(large.data_ptr<uint8_t>()), static_cast<size_t>(length)};
}

void Communicator::signal(const std::string& key, const std::string& value) noexcept {
  try {
    if (!parts_.store) return;
    parts_.store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
    // LibTorch sends a value and returns: once it answers a question, the value has arrived, for all who ask after this.
    parts_.store->check({key});
  } catch (const std::exception&) {
    // The store is gone with its host: whoever would wait for the key learns that from the store itself.
  }
}

int Communicator::next_scope(const char* call) {
  if (!parts_.store) {
    throw UsageError(
        std::string(call) +
        " needs the store that the processes met in, and the process group handed in has none: " + "construct it with one.");
  }
  return scopes_++;
}

void Communicator::pass(const char* call, std::source_location where) {
  guarded({.name = call, .where = where}, [](int64_t) {});
}

void Communicator::wait_for(const std::string& key, int from, const char* call, std::source_location where) {
  if (refuse_host_collective != nullptr) refuse_host_collective();
  guarded({.name = call, .where = where}, [&](int64_t) {
    // Looks at the processes first: a client that meets a dead host fills the screen with stack frames.
    const auto poll = [key, from, store = parts_.store, detective = detective_, limit = parts_.timeout] {
      const auto deadline = std::chrono::steady_clock::now() + limit;
      for (auto pause = kFirstPause; std::chrono::steady_clock::now() < deadline; pause = std::min(2 * pause, kLongestPause)) {
        // Asked before the key, which is set before leaving. Who else is lost does not matter to a scope that is open.
        const bool lost = detective && (detective->is_lost() || detective->has_left(from));
        const bool host_lost = detective && detective->store_is_lost();
        if (!host_lost && store->check({key})) return;
        if (lost) throw std::runtime_error("The scope will not open, since the group is lost.");
        std::this_thread::sleep_for(pause);
      }
      throw std::runtime_error("Timed out after " + std::to_string(limit.count()) + " ms.");
    };
    within(parts_.timeout + std::chrono::seconds(1), "Timed out: the store that rank 0 serves does not answer.", poll);
  });
}

}  // namespace accelerate
