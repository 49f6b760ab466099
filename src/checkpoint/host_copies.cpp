#include "checkpoint/host_copies.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/in_parallel.h"
#include "distributed/plain_tensor.h"

namespace accelerate {
namespace {

// Memory is asked for in such blocks, so that what is kept fits a run whose state grows; what one thread copies at a time.
constexpr uint64_t kMemoryBlock = uint64_t{64} << 20, kCopyPiece = uint64_t{8} << 20;
constexpr uint64_t kTorchAlignment = 64;
// What is copied sooner than it is arranged to be copied later.
constexpr uint64_t kSmallCopy = uint64_t{64} << 10;

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.is_non_overlapping_and_dense() && !is_offloaded(tensor);
}

}  // namespace

void LateCopies::make() {
  in_parallel(pieces_.size(), [&](size_t i) {
    Piece& piece = pieces_[i];
    std::memcpy(piece.to.get(), piece.from, piece.size);
    piece.reading.end();
  });
  pieces_.clear();
}

void HostCopies::begin() {
  copies_.clear();
  devices_.clear();
  // What a copy of last time still lies in is its own from here on.
  std::erase_if(blocks_, [](const Block& block) { return block.bytes.use_count() > 1; });
  for (auto& block : blocks_) block.used = 0;
}

at::Tensor HostCopies::add(const at::Tensor& tensor, CopyTime when) {
  if (!tensor.defined()) return tensor;
  if (is_plain_memory(tensor)) return add_plain(tensor, when);
  if (tensor.device().is_cpu() || tensor.is_meta() || tensor.layout() != at::kStrided)
    return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  // Only pinned memory is filled while the device works on; torch keeps it for the next time by itself.
  const at::Tensor source = tensor.detach();
  at::Tensor copy = at::empty_like(source, source.options().device(at::kCPU).pinned_memory(true));
  copy.copy_(source, /*non_blocking=*/true);
  if (std::find(devices_.begin(), devices_.end(), tensor.device()) == devices_.end()) devices_.push_back(tensor.device());
  return copy;
}

at::Tensor HostCopies::add_plain(const at::Tensor& tensor, CopyTime when) {
  const uint64_t size = tensor.nbytes();
  Block& block = block_for(size);
  std::shared_ptr<char> place(block.bytes, block.bytes.get() + block.used);
  block.used += (size + kTorchAlignment - 1) / kTorchAlignment * kTorchAlignment;
  const bool waits = when == CopyTime::later && size >= kSmallCopy && LateReading::is_possible(tensor);
  copies_.push_back({tensor, place, waits ? CopyTime::later : CopyTime::now});
  char* const bytes = place.get();
  return at::from_blob(
      bytes, tensor.sizes(), tensor.strides(), [memory = std::move(place)](void*) {}, tensor.options().requires_grad(false));
}

HostCopies::Block& HostCopies::block_for(uint64_t size) {
  const auto found =
      std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& block) { return block.size - block.used >= size; });
  if (found != blocks_.end()) return *found;
  const uint64_t wanted = (std::max(size, kMemoryBlock) + kTorchAlignment - 1) / kTorchAlignment * kTorchAlignment;
  std::shared_ptr<char> bytes(static_cast<char*>(std::aligned_alloc(kTorchAlignment, wanted)), [](char* p) { std::free(p); });
  if (!bytes) throw std::bad_alloc();
  return blocks_.emplace_back(Block{std::move(bytes), wanted});
}

LateCopies HostCopies::pieces_of(CopyTime when) const {
  LateCopies made;
  for (const Copy& copy : copies_) {
    if (copy.when != when) continue;
    const auto* source = static_cast<const char*>(copy.source.const_data_ptr());
    const uint64_t size = copy.source.nbytes();
    for (uint64_t done = 0; done < size; done += kCopyPiece) {
      made.pieces_.push_back({std::shared_ptr<char>(copy.to, copy.to.get() + done), source + done,
                              std::min(kCopyPiece, size - done),
                              when == CopyTime::later ? LateReading(copy.source) : LateReading()});
    }
  }
  return made;
}

LateCopies HostCopies::finish() {
  pieces_of(CopyTime::now).make();
  for (const auto device : devices_) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  devices_.clear();
  LateCopies later = pieces_of(CopyTime::later);
  copies_.clear();
  return later;
}

void HostCopies::release() { blocks_.clear(); }

}  // namespace accelerate
