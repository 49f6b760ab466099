#include "checkpoint/host_copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <unordered_map>

#include "core/in_parallel.h"
#include "distributed/accelerators.h"
#include "distributed/plain_tensor.h"

namespace accelerate::detail {
namespace {

// Memory is asked for in such blocks, so that what is kept fits a run whose state grows; what one thread copies at a time.
constexpr uint64_t kMemoryBlock = uint64_t{64} << 20, kCopyPiece = uint64_t{4} << 20;
constexpr uint64_t kTorchAlignment = 64;
// What is copied sooner than it is arranged to be copied later.
constexpr uint64_t kSmallCopy = uint64_t{64} << 10;

uint64_t aligned(uint64_t size) { return (size + kTorchAlignment - 1) / kTorchAlignment * kTorchAlignment; }

/// Whether the bytes of `tensor` are its values, and lie in one run.
bool is_plain_memory(const at::Tensor& tensor) {
  return !tensor.is_meta() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.is_non_overlapping_and_dense() && !is_offloaded(tensor);
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}).view(at::kByte); }

at::Tensor part_of(const at::Tensor& bytes, uint64_t offset, uint64_t size) {
  return bytes.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(size));
}

void copy_from_device(const at::Tensor& bytes, const c10::Event& written, char* to) {
  // Of those with a high priority: NCCL and others are at work on the usual ones.
  const c10::Stream stream = c10::impl::VirtualGuardImpl(bytes.device().type()).getNewStream(bytes.device(), /*priority=*/-1);
  const c10::StreamGuard guard(stream);
  written.block(stream);
  // torch keeps pinned memory for the next piece.
  const at::Tensor pinned = at::empty(bytes.sizes(), bytes.options().device(at::kCPU).pinned_memory(true));
  pinned.copy_(bytes, /*non_blocking=*/true);
  stream.synchronize();
  std::memcpy(to, pinned.const_data_ptr(), bytes.nbytes());
}

}  // namespace

void DeferredCopies::make() {
  in_parallel(pieces_.size(), [&](size_t i) {
    const at::AutoDispatchBelowADInplaceOrView bytes_alone;
    Piece& piece = pieces_[i];
    if (piece.written) {
      copy_from_device(piece.on_device, *piece.written, piece.to.get());
    } else {
      std::memcpy(piece.to.get(), piece.from, piece.size);
    }
    piece.reading.end();
  });
  pieces_.clear();
}

void HostCopies::begin() {
  copies_.clear();
  // What a copy of last time still lies in is its own from here on.
  std::erase_if(blocks_, [](const Block& block) { return block.bytes.use_count() > 1; });
  for (auto& block : blocks_) block.used = 0;
}

at::Tensor HostCopies::add(const at::Tensor& tensor, CopyTime when) {
  if (!tensor.defined()) return tensor;
  if (!is_plain_memory(tensor)) return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  const uint64_t size = tensor.nbytes();
  Block& block = block_for(size);
  std::shared_ptr<char> place(block.bytes, block.bytes.get() + block.used);
  block.used += aligned(size);
  const bool waits =
      when == CopyTime::later && (!tensor.is_cpu() || (size >= kSmallCopy && CopyOnWriteGuard::is_possible(tensor)));
  const at::AutoDispatchBelowADInplaceOrView bytes_alone;
  copies_.push_back({bytes_of(tensor), place, waits ? CopyTime::later : CopyTime::now, nullptr});
  char* const bytes = place.get();
  return at::from_blob(
      bytes, tensor.sizes(), tensor.strides(), [memory = std::move(place)](void*) {},
      tensor.options().device(at::kCPU).requires_grad(false));
}

HostCopies::Block& HostCopies::block_for(uint64_t size) {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.size - block.used >= size; });
  if (found != blocks_.end()) return *found;
  const uint64_t wanted = aligned(std::max(size, kMemoryBlock));
  std::shared_ptr<char> bytes(static_cast<char*>(std::aligned_alloc(kTorchAlignment, wanted)), [](char* p) { std::free(p); });
  if (!bytes) throw std::bad_alloc();
  return blocks_.emplace_back(Block{std::move(bytes), wanted});
}

DeferredCopies HostCopies::pieces_of(CopyTime when) const {
  DeferredCopies made;
  for (const Copy& copy : copies_) {
    if (copy.when != when) continue;
    const auto* source = static_cast<const char*>(copy.source.const_data_ptr());
    const uint64_t whole = copy.source.nbytes();
    for (uint64_t done = 0; done < whole; done += kCopyPiece) {
      const uint64_t size = std::min(kCopyPiece, whole - done);
      std::shared_ptr<char> to(copy.to, copy.to.get() + done);
      if (copy.written) {
        made.pieces_.push_back({std::move(to), nullptr, size, {}, part_of(copy.source, done, size), copy.written});
      } else {
        made.pieces_.push_back(
            {std::move(to), source + done, size, when == CopyTime::later ? CopyOnWriteGuard(copy.source) : CopyOnWriteGuard()});
      }
    }
  }
  return made;
}

void HostCopies::put_aside(c10::Device device) {
  std::vector<Copy*> wait;
  uint64_t size = 0;
  for (Copy& copy : copies_) {
    if (copy.when != CopyTime::later || copy.source.device() != device) continue;
    wait.push_back(&copy);
    size += aligned(copy.source.nbytes());
  }
  if (wait.empty()) return;
  at::Tensor aside;
  // LibTorch keeps the memory of last time in its cache, unless it has found another use for it.
  const double free = free_accelerator_memory(device.index()).value_or(0) + static_cast<double>(put_aside_before_[device]);
  try {
    if (free >= 2 * static_cast<double>(size)) aside = at::empty({static_cast<int64_t>(size)}, wait.front()->source.options());
  } catch (const c10::OutOfMemoryError&) {  // others may have been given less than what is free
  }
  if (!aside.defined()) {
    for (Copy* copy : wait) copy->when = CopyTime::now;
    return;
  }
  put_aside_before_[device] = size;
  uint64_t used = 0;
  for (Copy* copy : wait) {
    const at::Tensor place = part_of(aside, used, copy->source.nbytes());
    used += aligned(copy->source.nbytes());
    place.copy_(copy->source);
    copy->source = place;
  }
}

DeferredCopies HostCopies::finish() {
  // Also when something goes wrong: they hold weights.
  struct Forgetting {
    std::vector<Copy>& copies;
    ~Forgetting() { copies.clear(); }
  } const forgetting{copies_};
  const at::AutoDispatchBelowADInplaceOrView bytes_alone;
  std::unordered_map<c10::Device, std::shared_ptr<c10::Event>> written;
  for (Copy& copy : copies_) {
    const c10::Device device = copy.source.device();
    if (device.is_cpu()) continue;
    auto& event = written[device];
    if (!event) {
      put_aside(device);
      event = std::make_shared<c10::Event>(device.type());
      event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    }
    copy.written = event;
  }
  pieces_of(CopyTime::now).make();
  return pieces_of(CopyTime::later);
}

void HostCopies::release() { blocks_.clear(); }

}  // namespace accelerate::detail
