#include "residency/copy_lane.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "residency/host_memory.h"

namespace accelerate::detail {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

CopyLane::CopyLane(c10::Device device, int readers) : device_(device), readers_(readers) {
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

at::Tensor CopyLane::allocate(uint64_t bytes) const {
  // Memory belongs to the stream that was current: where it is freed and taken again, that stream's order is kept.
  const auto guard = make_current();
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte).device(device_));
}

void CopyLane::copy(const at::Tensor& from, uint64_t from_offset, const at::Tensor& to, uint64_t to_offset, uint64_t size) const {
  // Bytes alone: whether either was made in InferenceMode, or by an operator that is recorded, does not matter.
  const at::AutoDispatchBelowADInplaceOrView bytes_alone;
  const auto guard = make_current();
  const auto part = [&](const at::Tensor& tensor, uint64_t offset) {
    return tensor.narrow(0, static_cast<int64_t>(offset), static_cast<int64_t>(size));
  };
  part(to, to_offset).copy_(part(from, from_offset), /*non_blocking=*/true);
}

/// A buffer that goes back by itself.
class CopyLane::Borrowed {
 public:
  explicit Borrowed(CopyLane& lane) : buffer(lane.take_buffer()), lane_(lane) {
    if (buffer.copied) buffer.copied->synchronize();
  }
  ~Borrowed() {
    {
      const std::lock_guard lock(lane_.mutex_);
      lane_.buffers_.push_back(std::move(buffer));
    }
    lane_.returned_.notify_one();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  Buffer buffer;

 private:
  CopyLane& lane_;
};

CopyLane::Buffer CopyLane::take_buffer() {
  std::unique_lock lock(mutex_);
  if (!allocated_) {
    // Two for each reader: one is copied while the other is read into.
    const int count = 2 * readers_;
    const at::AutoDispatchBelowADInplaceOrView bytes_alone;
    const at::Tensor memory = pinned_memory(static_cast<uint64_t>(count) * kPartSize);
    for (int i = 0; i < count; ++i) {
      buffers_.push_back({memory.narrow(0, i * static_cast<int64_t>(kPartSize), static_cast<int64_t>(kPartSize)), nullptr});
    }
    allocated_ = true;
  }
  returned_.wait(lock, [&] { return !buffers_.empty(); });
  Buffer buffer = std::move(buffers_.front());
  buffers_.pop_front();
  return buffer;
}

void CopyLane::bring(const WeightStore& store, uint64_t offset, uint64_t size, const at::Tensor& to, uint64_t to_offset) {
  Borrowed borrowed(*this);
  store.read(borrowed.buffer.bytes.mutable_data_ptr<uint8_t>(), size, offset);
  copy(borrowed.buffer.bytes, 0, to, to_offset, size);
  if (!stream_) return;
  if (!borrowed.buffer.copied) borrowed.buffer.copied = std::make_shared<c10::Event>(device_.type());
  borrowed.buffer.copied->record(*stream_);
}

std::shared_ptr<const c10::Event> CopyLane::mark() const {
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(*stream_);
  return event;
}

void CopyLane::wait(const c10::Stream& stream) const {
  if (!stream_ || stream == *stream_) return;
  c10::Event event(device_.type());
  event.record(stream);
  event.block(*stream_);
}

void CopyLane::synchronize() const {
  if (stream_) stream_->synchronize();
}

}  // namespace accelerate::detail
