#include "distributed/communicator.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <utility>

#include "core/source_line.h"
#include "distributed/busy.h"
#include "distributed/detective.h"
#include "distributed/failure_policy.h"
#include "distributed/pass_tracker.h"
#include "distributed/store_scopes.h"
#include "distributed/tensor_header.h"
#include "distributed/watchful_group.h"
#include "launch/failure_notes.h"
#include "rendezvous/bounded.h"

namespace accelerate::detail {
namespace {

/// Objects up to this size travel in one collective, their length in front; larger ones need a second. Most are small,
/// and a collective costs far more than a few hundred bytes.
constexpr int64_t kInlineBytes = 1024 - static_cast<int64_t>(sizeof(int64_t));

/// What debug mode does before a call: the same for all of them.
constexpr const char* kComparison = "comparing calls";

/// How often a rank looks whether the group is lost while it waits for what runs aside.
constexpr std::chrono::milliseconds kAsideLook{100};

/// Of messages between two ranks, below those of reduce-scatters.
constexpr int kHeaderTag = (1 << 30) - 2, kDataTag = (1 << 30) - 1;

at::Tensor byte_buffer(int64_t size) { return at::empty({size}, at::TensorOptions().dtype(at::kByte)); }

std::string from_rank(int rank) { return "from " + std::to_string(rank); }

/// What a call of the library's own gives, or of the user's program.
CallNote note_of(const char* call, std::source_location where, const Given& given) {
  return {.name = call, .where = where, .tensor = given.tensor, .how = given.how, .nesting = given.nesting, .leaf = given.leaf};
}

CallNote note_of(const char* call, std::source_location where, const at::Tensor& sent, std::string how, const Given* given) {
  if (given != nullptr) return note_of(call, where, *given);
  return {.name = call, .where = where, .tensor = &sent, .how = std::move(how)};
}

/// What can be neither used nor ended. Held, so that leak checkers do not report it.
template <class Thing>
void keep_for_ever(Thing thing) {
  static std::mutex mutex;
  static auto* kept = new std::vector<Thing>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(thing));
}

}  // namespace

Communicator::Communicator(GroupParts parts)
    : parts_(std::move(parts)),
      failures_(std::make_unique<FailurePolicy>(rank(), size(), parts_.timeout, parts_.names)),
      scopes_(std::make_unique<StoreScopes>(parts_.store, parts_.timeout, *failures_)),
      passes_(std::make_unique<PassTracker>(*failures_)),
      sending_(static_cast<size_t>(size())),
      receiving_(static_cast<size_t>(size())),
      exceptions_before_(std::uncaught_exceptions()),
      process_(::getpid()) {}

Communicator::~Communicator() {
  // A copy of the process (fork) has none of the group's threads to wait for, and nothing to say in its name.
  if (::getpid() != process_) {
    keep_for_ever(std::move(passes_));
    keep_for_ever(std::move(scopes_));
    keep_for_ever(std::move(failures_));
    keep_for_ever(std::move(parts_));
    return;
  }
  const bool unwinding = std::uncaught_exceptions() > exceptions_before_;
  passes_.reset();
  // Before any connection is closed, so that peers know why.
  failures_->leave_group(unwinding);
  if (!parts_.owned) return;
  const int rank = this->rank(), size = this->size();
  // Nobody waits for the end of a group that failed.
  const bool awaited = size > 1 && !failures_->failed();
  if (awaited) scopes_->end(rank, failures_->detective() ? failures_->detective()->last_report() : "1");
  if (failures_->abandoned()) {
    keep_for_ever(std::move(parts_.transport));
  } else {
    parts_.transport->close(/*aborts=*/unwinding || failures_->failed());
  }
  // A rank that still waits on a key when its host leaves sees a lost connection, so the host is the last to go. But an exception
  // on its way out of here waits for nobody. A group that was split from another leaves it to that.
  if (!parts_.parent && awaited && parts_.first_serves_store && rank == 0 && !unwinding)
    scopes_->serve_until_all_have_ended(size);
}

c10::intrusive_ptr<WatchfulGroup> Communicator::background_group() {
  return c10::make_intrusive<WatchfulGroup>(*passes_, *parts_.transport);
}

int Communicator::first_here() const { return failures_->detective() ? failures_->detective()->first_here() : 0; }

void Communicator::watch(const std::string& machine, std::chrono::milliseconds threshold, std::source_location where) {
  leave_failure_note(FailureNote::none);  // what failed before this group was made has been dealt with
  if (size() == 1) return;
  auto logbook = std::make_shared<Logbook>();
  const auto card = ProcessCard::of_this_process(machine, logbook->descriptor());
  DetectiveParts parts{.rank = rank(),
                       .logbook = logbook,
                       .store = parts_.store,
                       .first_serves_store = parts_.first_serves_store,
                       .threshold = threshold,
                       .names = parts_.names,
                       .parent = parts_.parent ? parts_.parent->failures_->detective() : nullptr};
  for (const auto& bytes : all_gather_bytes({reinterpret_cast<const char*>(&card), sizeof(card)}, "joining", where)) {
    const bool same_size = bytes.size() == sizeof(card);
    if (same_size) std::memcpy(&parts.cards.emplace_back(), bytes.data(), sizeof(card));
    if (!same_size || parts.cards.back().layout != card.layout)
      failures_->fail("joining", where,
                      "a peer uses another version of this library: build the programs of all ranks with the same version");
  }
  failures_->set_detective(std::make_shared<Detective>(std::move(parts)));
  // A rank that leaves at once must not exit before the others have mapped its call log.
  const auto see_everyone = all_gather_bytes(failures_->detective()->sees_everyone() ? "yes" : "no", "joining", where);
  hosts_compare_ = std::find(see_everyone.begin(), see_everyone.end(), "no") != see_everyone.end();
  if (hosts_compare_ && !parts_.owned) {
    try {
      gather_marks(0);
    } catch (const std::exception&) {  // not by this backend, which is the same on all ranks
      hosts_compare_ = false;
    }
  }
  Busy::belongs_to(logbook);
  failures_->set_logbook(std::move(logbook));
}

std::vector<uint64_t> Communicator::gather_marks(uint64_t mine) {
  at::Tensor sent = byte_buffer(8 * size()).view(at::kLong), received = byte_buffer(8 * size()).view(at::kLong);
  sent.fill_(static_cast<int64_t>(mine));
  // Not an all-gather: only calls that were compared before are sent in this way too, so no other can be mistaken for it.
  failures_->wait(*parts_.transport->all_to_all(received, sent));
  const auto* theirs = received.const_data_ptr<int64_t>();
  return {theirs, theirs + size()};
}

void Communicator::compare_between_hosts(int64_t number) {
  const uint64_t mine = failures_->logbook()->mark(number);
  const auto marks = gather_marks(mine);
  if (std::any_of(marks.begin(), marks.end(), [mine](uint64_t mark) { return contradict(mine, mark); })) throw GroupLost(number);
}

void Communicator::run_collective(at::DeviceType device, CallNote call, bool between_hosts,
                                  c10::function_ref<StartedCollective()> start) {
  if (device == at::kCPU) NoHostCollectives::check();
  const bool on_host = parts_.transport->runs_on_host(device);
  if (!on_host) call.how += (call.how.empty() ? "on " : " on ") + c10::DeviceTypeName(device, true);
  failures_->guarded(call, [&](int64_t number) {
    failures_->check_not_lost();
    // While a step is recorded nothing is sent.
    if (between_hosts && hosts_compare_ && !NoHostCollectives::refused()) compare_between_hosts(number);
    const StartedCollective work = start();
    if (on_host) {
      failures_->wait(*work);
    } else {
      work->wait();
    }
  });
}

void Communicator::align_calls(const char* call, std::source_location where) {
  Logbook* logbook = failures_->logbook();
  at::Tensor number = byte_buffer(sizeof(int64_t)).view(at::kLong);
  *number.data_ptr<int64_t>() = logbook != nullptr ? logbook->page().calls.load() : 0;
  run_collective(at::kCPU, {.name = call, .where = where, .compared = false}, false,
                 [&] { return transport().all_reduce(number, c10d::ReduceOp::MAX); });
  if (logbook != nullptr) logbook->skip_to(*number.data_ptr<int64_t>() + 1);
}

void Communicator::agree(const char* call, const std::string& what, std::source_location where) {
  // The source line is reported, not compared: the same call may be in two branches of an if.
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
  std::string diagnosis = std::string(call) + at_line(where) + " cannot run: ";
  diagnosis +=
      same_call ? "the ranks do not agree on what to send. Make shapes and dtypes equal, for example with pad_across_processes."
                : "the ranks make different calls. All ranks must make the same calls in the same order.";
  for (size_t rank = 0; rank < wishes.size(); ++rank) {
    const std::string& wish = wishes[rank];
    diagnosis += "\n  - Rank " + std::to_string(rank) + parts_.names.aside(rank) + ": " + field(wish, 0) +
                 (field(wish, 1).empty() ? "" : " of ") + field(wish, 1) + field(wish, 2);
  }
  throw DistributedError(diagnosis);
}

void Communicator::barrier(const char* call, std::source_location where, const Given& given) {
  run_collective(at::kCPU, note_of(call, where, given), true, [this] { return transport().barrier(); });
}

void Communicator::all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                              const Given* given) {
  run_collective(input.device().type(), note_of(call, where, input, "", given), given != nullptr,
                 [&] { return transport().all_gather(output, input); });
}

// Objects: what one rank sends may be longer than what another does.
void Communicator::gather_bytes(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where) {
  run_collective(at::kCPU, {.name = call, .where = where}, true, [&] { return transport().all_gather(output, input); });
}

void Communicator::all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call,
                              std::source_location where, const Given* given) {
  run_collective(tensor.device().type(), note_of(call, where, tensor, "", given), given != nullptr,
                 [&] { return transport().all_reduce(tensor, operation); });
}

void Communicator::reduce_scatter(at::Tensor& output, at::Tensor& input, c10d::ReduceOp::RedOpType operation, const char* call,
                                  std::source_location where, const Given* given) {
  run_collective(input.device().type(), note_of(call, where, input, "", given), given != nullptr,
                 [&] { return transport().reduce_scatter(output, input, operation); });
}

void Communicator::all_to_all(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where,
                              const Given* given) {
  run_collective(input.device().type(), note_of(call, where, input, "", given), given != nullptr,
                 [&] { return transport().all_to_all(output, input); });
}

void Communicator::broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where, const Given* given) {
  run_collective(tensor.device().type(), note_of(call, where, tensor, from_rank(from), given), given != nullptr,
                 [&] { return transport().broadcast(tensor, from); });
}

BackgroundCollective Communicator::run_in_background(const CallNote& call, c10::function_ref<StartedCollective()> start) {
  const auto device = call.tensor->device().type();
  if (device == at::kCPU) NoHostCollectives::check();
  const int64_t number = failures_->announce(call);
  try {
    return {*failures_, call, number, start(), transport().runs_on_host(device)};
  } catch (const std::exception& error) {
    failures_->fail(call.name, call.where, words_of(error));
  }
}

BackgroundCollective Communicator::start_all_gather(at::Tensor& output, at::Tensor& input, std::string how,
                                                    std::source_location where) {
  return run_in_background({.name = "all_gather", .where = where, .tensor = &input, .how = std::move(how)},
                           [&] { return transport().all_gather(output, input); });
}

BackgroundCollective Communicator::start_all_reduce(at::Tensor& tensor, std::string how, std::source_location where) {
  return run_in_background({.name = "all_reduce", .where = where, .tensor = &tensor, .how = std::move(how)},
                           [&] { return transport().all_reduce(tensor, c10d::ReduceOp::SUM); });
}

BackgroundCollective Communicator::start_reduce_scatter(at::Tensor& output, at::Tensor& input, std::string how,
                                                        std::source_location where) {
  return run_in_background({.name = "reduce_scatter", .where = where, .tensor = &input, .how = std::move(how)},
                           [&] { return transport().reduce_scatter(output, input, c10d::ReduceOp::SUM); });
}

void Communicator::send_bytes(at::Tensor& tensor, int from, const char* call, std::source_location where) {
  run_collective(at::kCPU, {.name = call, .where = where, .how = from_rank(from)}, true,
                 [&] { return transport().broadcast(tensor, from); });
}

void Communicator::run_aside(const char* call, std::source_location where, std::function<void()> action) {
  NoHostCollectives::check();
  failures_->guarded({.name = call, .where = where}, [&](int64_t) {
    failures_->check_not_lost();
    auto end = start_aside(std::move(action));
    for (int look = 1; end.wait_for(kAsideLook) != std::future_status::ready; ++look) {
      if (failures_->is_lost(look)) throw std::runtime_error("The process group is lost.");
    }
    end.get();
  });
}

void Communicator::send(const at::Tensor& tensor, int to, std::source_location where) {
  NoHostCollectives::check();
  const bool on_host = transport().runs_on_host(tensor.device().type());
  const auto contents = TensorHeader::of(tensor);
  at::Tensor header = byte_buffer(sizeof(contents));
  std::memcpy(header.data_ptr(), &contents, sizeof(contents));
  failures_->guarded_aside("send", "send to rank " + std::to_string(to) + parts_.names.aside(to), where, [&] {
    const std::lock_guard lock(sending_[static_cast<size_t>(to)]);
    failures_->wait(*transport().send(header, to, kHeaderTag));
    if (tensor.numel() == 0) return;
    const auto sent = transport().send(as_bytes_in_memory(on_host ? tensor.cpu() : tensor), to, kDataTag);
    on_host ? failures_->wait(*sent) : static_cast<void>(sent->wait());
  });
}

at::Tensor Communicator::receive(int from, at::Device device, std::source_location where) {
  NoHostCollectives::check();
  at::Tensor result;
  failures_->guarded_aside("recv", "recv from rank " + std::to_string(from) + parts_.names.aside(from), where, [&] {
    const std::lock_guard lock(receiving_[static_cast<size_t>(from)]);
    at::Tensor header = byte_buffer(sizeof(TensorHeader));
    failures_->wait(*transport().receive(header, from, kHeaderTag));
    TensorHeader contents;
    std::memcpy(&contents, header.data_ptr(), sizeof(contents));
    result = contents.room(device);
    if (result.numel() == 0) return;
    const bool on_host = transport().runs_on_host(result.device().type());
    const at::Tensor arriving = on_host ? result.cpu() : result;
    const auto received = transport().receive(as_bytes_in_memory(arriving), from, kDataTag);
    on_host ? failures_->wait(*received) : static_cast<void>(received->wait());
    if (!arriving.is_same(result)) result.copy_(arriving);
  });
  return result;
}

std::vector<std::string> Communicator::all_gather_bytes(std::string_view bytes, const char* call, std::source_location where) {
  const auto length = static_cast<int64_t>(bytes.size());
  const auto header = static_cast<int64_t>(sizeof(length));
  const int64_t width = header + kInlineBytes;
  at::Tensor mine = byte_buffer(width), all = byte_buffer(width * size());
  std::memcpy(mine.data_ptr(), &length, sizeof(length));
  std::memcpy(mine.data_ptr<uint8_t>() + header, bytes.data(), static_cast<size_t>(std::min(length, kInlineBytes)));
  gather_bytes(all, mine, call, where);

  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  std::vector<std::string> result(static_cast<size_t>(size()));
  int64_t longest = 0;
  for (int rank = 0; rank < size(); ++rank) {
    const uint8_t* row = all.data_ptr<uint8_t>() + rank * width;
    std::memcpy(&lengths[rank], row, sizeof(int64_t));
    if (lengths[rank] < 0) failures_->fail(call, where, "the length of rank " + std::to_string(rank) + "'s object is corrupt");
    longest = std::max(longest, lengths[rank]);
    if (lengths[rank] <= kInlineBytes)
      result[rank].assign(reinterpret_cast<const char*>(row + header), static_cast<size_t>(lengths[rank]));
  }
  if (longest <= kInlineBytes) return result;

  at::Tensor large = byte_buffer(longest), larges = byte_buffer(longest * size());
  std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  gather_bytes(larges, large, call, where);
  for (int rank = 0; rank < size(); ++rank) {
    result[rank].assign(reinterpret_cast<const char*>(larges.data_ptr<uint8_t>() + rank * longest),
                        static_cast<size_t>(lengths[rank]));
  }
  return result;
}

std::string Communicator::broadcast_bytes(std::string_view bytes, int from, const char* call, std::source_location where) {
  auto length = static_cast<int64_t>(bytes.size());
  const auto header = static_cast<int64_t>(sizeof(length));
  at::Tensor buffer = byte_buffer(header + kInlineBytes);
  if (rank() == from) {
    std::memcpy(buffer.data_ptr(), &length, sizeof(length));
    std::memcpy(buffer.data_ptr<uint8_t>() + header, bytes.data(), static_cast<size_t>(std::min(length, kInlineBytes)));
  }
  send_bytes(buffer, from, call, where);
  std::memcpy(&length, buffer.data_ptr(), sizeof(length));
  if (length <= kInlineBytes)
    return {reinterpret_cast<const char*>(buffer.data_ptr<uint8_t>() + header), static_cast<size_t>(length)};

  at::Tensor large = byte_buffer(length);
  if (rank() == from) std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  send_bytes(large, from, call, where);
  return {reinterpret_cast<const char*>(large.data_ptr<uint8_t>()), static_cast<size_t>(length)};
}

}  // namespace accelerate::detail
