#include "data/device_feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accelerate::detail {

DeviceFeed::DeviceFeed(std::optional<at::Device> device, bool non_blocking) {
  if (!device) return;
  if (device->is_cpu()) {
    device_ = at::kCPU;  // what lies on another device comes here
    return;
  }
  const c10::impl::VirtualGuardImpl guard(device->type());
  device_ = device->has_index() ? *device : guard.getDevice();
  if (!non_blocking) return;
  side_ = guard.getStreamFromGlobalPool(*device_);
  copied_.emplace(device_->type());
}

void DeviceFeed::send(const Leaves& batch) {
  if (!device_) return;
  if (!side_) return send_to_device(batch, *device_, false);
  const c10::StreamGuard on_side(*side_);
  send_to_device(batch, *device_, true);
  copied_->record(*side_);
}

void DeviceFeed::receive(const Leaves& batch) {
  if (!side_) return;
  const c10::impl::VirtualGuardImpl guard(device_->type());
  const c10::Stream current = guard.getStream(*device_);
  copied_->block(current);
  // The memory belongs to the side stream: without record_stream it would be reused there while `current` still reads it.
  for (const at::Tensor* tensor : batch.tensors) {
    if (tensor->defined() && tensor->device() == *device_) guard.recordDataPtrOnStream(tensor->storage().data_ptr(), current);
  }
}

}  // namespace accelerate::detail
