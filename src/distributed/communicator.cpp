#include "distributed/communicator.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>

#include <cstring>
#include <exception>

namespace accelerate {
namespace {

/// Objects up to this size travel in one exchange, their length in front; larger ones need a second. Most are small,
/// and an exchange costs far more than a few hundred bytes.
constexpr int64_t kInlineBytes = 1024 - static_cast<int64_t>(sizeof(int64_t));

/// How long the process that serves the store waits at its end for the others to reach theirs.
constexpr std::chrono::seconds kHostPatience{30};

std::string place(std::source_location where) { return std::string(where.file_name()) + ":" + std::to_string(where.line()); }

at::Tensor byte_buffer(int64_t size) { return at::empty({size}, at::TensorOptions().dtype(at::kByte)); }

/// c10d notes a group's first exchange in a table of the whole process without a lock (2.11), so groups used by several
/// threads start theirs one at a time.
std::mutex& starting() {
  static std::mutex mutex;
  return mutex;
}

void shut_down(c10d::Backend& backend) noexcept {
  try {
    backend.shutdown();
  } catch (const std::exception&) {
    // It failed before, or a peer did: there is nothing left to end.
  }
}

}  // namespace

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
  if (!parts_.owned) return;
  // Gloo and NCCL end before the store they met in.
  if (parts_.device_backend) shut_down(*parts_.device_backend);
  parts_.device_backend.reset();
  cpu_backend_.reset();
  parts_.group.reset();
  if (size_ == 1) return;
  signal("end/" + std::to_string(rank_));
  // Nor does an exception on its way out of here wait for anybody.
  if (!parts_.hosts_store || failed_ || std::uncaught_exceptions() > exceptions_before_) return;
  // A rank that still waits on a key when its host leaves sees a lost connection, so the host is the last to go.
  std::vector<std::string> ends;
  for (int rank = 0; rank < size_; ++rank) ends.push_back("end/" + std::to_string(rank));
  try {
    parts_.store->wait(ends, kHostPatience);
  } catch (const std::exception&) {
    // Someone died or hangs. The launcher tells who; here there is nothing left to serve.
  }
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

void Communicator::fail(const char* call, std::source_location where, const std::string& reason) {
  std::string story = std::string(call) + " at " + place(where) + " failed on rank " + std::to_string(rank_) + " of " +
                      std::to_string(size_) + ": " + reason;
  {
    const std::lock_guard lock(story_mutex_);
    if (!failed_.exchange(true)) story_ = story;
  }
  throw DistributedError(story);
}

template <class Action>
void Communicator::guarded(const char* call, std::source_location where, Action&& action) {
  if (failed_) {
    const std::lock_guard lock(story_mutex_);
    throw DistributedError(std::string(call) + " at " + place(where) + " cannot run: the group is unusable since " + story_);
  }
  try {
    action();
  } catch (const UsageError&) {
    throw;  // nothing has been exchanged
  } catch (const std::exception& error) {
    fail(call, where, words_of(error));
  }
}

template <class Start>
void Communicator::exchange(at::DeviceType device, const char* call, std::source_location where, Start&& start) {
  guarded(call, where, [&] {
    c10d::Backend& backend = backend_for(device);
    // Only gloo: it starts without waiting for anybody, which NCCL does not.
    std::unique_lock lock(starting(), std::defer_lock);
    if (&backend == cpu_backend_.get()) lock.lock();
    auto work = start(backend);
    if (lock) lock.unlock();
    work->wait();
  });
}

void Communicator::barrier(std::source_location where) {
  exchange(at::kCPU, "wait_for_everyone", where, [](c10d::Backend& backend) { return backend.barrier(); });
}

void Communicator::all_gather(at::Tensor& output, at::Tensor& input, const char* call, std::source_location where) {
  exchange(input.device().type(), call, where, [&](c10d::Backend& backend) { return backend._allgather_base(output, input); });
}

void Communicator::all_reduce(at::Tensor& tensor, c10d::ReduceOp::RedOpType operation, const char* call,
                              std::source_location where) {
  exchange(tensor.device().type(), call, where, [&](c10d::Backend& backend) {
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    std::vector<at::Tensor> tensors = {tensor};
    return backend.allreduce(tensors, options);
  });
}

void Communicator::broadcast(at::Tensor& tensor, int from, const char* call, std::source_location where) {
  exchange(tensor.device().type(), call, where, [&](c10d::Backend& backend) {
    c10d::BroadcastOptions options;
    options.rootRank = from;
    std::vector<at::Tensor> tensors = {tensor};
    return backend.broadcast(tensors, options);
  });
}

std::vector<std::string> Communicator::all_gather_bytes(std::string_view bytes, const char* call, std::source_location where) {
  const auto length = static_cast<int64_t>(bytes.size());
  const auto header = static_cast<int64_t>(sizeof(length));
  const int64_t width = header + kInlineBytes;
  at::Tensor mine = byte_buffer(width), all = byte_buffer(width * size_);
  std::memcpy(mine.data_ptr(), &length, sizeof(length));
  std::memcpy(mine.data_ptr<uint8_t>() + header, bytes.data(), static_cast<size_t>(std::min(length, kInlineBytes)));
  all_gather(all, mine, call, where);

  std::vector<int64_t> lengths(static_cast<size_t>(size_));
  std::vector<std::string> result(static_cast<size_t>(size_));
  int64_t longest = 0;
  for (int rank = 0; rank < size_; ++rank) {
    const uint8_t* row = all.data_ptr<uint8_t>() + rank * width;
    std::memcpy(&lengths[rank], row, sizeof(int64_t));
    if (lengths[rank] < 0) fail(call, where, "the length of process " + std::to_string(rank) + "'s object arrived damaged");
    longest = std::max(longest, lengths[rank]);
    if (lengths[rank] <= kInlineBytes)
      result[rank].assign(reinterpret_cast<const char*>(row + header), static_cast<size_t>(lengths[rank]));
  }
  if (longest <= kInlineBytes) return result;

  at::Tensor large = byte_buffer(longest), larges = byte_buffer(longest * size_);
  std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  all_gather(larges, large, call, where);
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
  broadcast(buffer, from, call, where);
  std::memcpy(&length, buffer.data_ptr(), sizeof(length));
  if (length <= kInlineBytes)
    return {reinterpret_cast<const char*>(buffer.data_ptr<uint8_t>() + header), static_cast<size_t>(length)};

  at::Tensor large = byte_buffer(length);
  if (rank_ == from) std::memcpy(large.data_ptr(), bytes.data(), bytes.size());
  broadcast(large, from, call, where);
  return {reinterpret_cast<const char*>(large.data_ptr<uint8_t>()), static_cast<size_t>(length)};
}

void Communicator::signal(const std::string& key) noexcept {
  try {
    if (parts_.store) parts_.store->set(key, std::vector<uint8_t>{1});
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

void Communicator::wait_for(const std::string& key, const char* call, std::source_location where) {
  guarded(call, where, [&] { parts_.store->wait({key}, parts_.timeout); });
}

}  // namespace accelerate
