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

bool is_plain_memory(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_conj() &&
         !tensor.is_neg() && tensor.is_non_overlapping_and_dense() && !is_offloaded(tensor);
}

}  // namespace

void HostCopies::begin() {
  copies_.clear();
  sources_.clear();
  devices_.clear();
  // What a copy of last time still lies in is its own from here on.
  std::erase_if(blocks_, [](const Block& block) { return block.bytes.use_count() > 1; });
  for (auto& block : blocks_) block.used = 0;
}

at::Tensor HostCopies::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (is_plain_memory(tensor)) return add_plain(tensor);
  if (tensor.device().is_cpu() || tensor.is_meta() || tensor.layout() != at::kStrided)
    return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  // Only pinned memory is filled while the device works on; torch keeps it for the next time by itself.
  const at::Tensor source = tensor.detach();
  at::Tensor copy = at::empty_like(source, source.options().device(at::kCPU).pinned_memory(true));
  copy.copy_(source, /*non_blocking=*/true);
  if (std::find(devices_.begin(), devices_.end(), tensor.device()) == devices_.end()) devices_.push_back(tensor.device());
  return copy;
}

at::Tensor HostCopies::add_plain(const at::Tensor& tensor) {
  const uint64_t size = tensor.nbytes();
  Block& block = block_for(size);
  char* const place = block.bytes.get() + block.used;
  block.used += (size + kTorchAlignment - 1) / kTorchAlignment * kTorchAlignment;
  sources_.push_back(tensor);
  const auto* source = static_cast<const char*>(tensor.const_data_ptr());
  for (uint64_t done = 0; done < size; done += kCopyPiece) {
    copies_.push_back({place + done, source + done, std::min(kCopyPiece, size - done)});
  }
  return at::from_blob(
      place, tensor.sizes(), tensor.strides(), [memory = block.bytes](void*) {}, tensor.options().requires_grad(false));
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

void HostCopies::finish() {
  in_parallel(copies_.size(), [&](size_t i) { std::memcpy(copies_[i].to, copies_[i].from, copies_[i].size); });
  copies_.clear();
  sources_.clear();
  for (const auto device : devices_) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  devices_.clear();
}

void HostCopies::release() { blocks_.clear(); }

}  // namespace accelerate
