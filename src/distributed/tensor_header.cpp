#include "distributed/tensor_header.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <stdexcept>

namespace accelerate::detail {

TensorHeader TensorHeader::of(const at::Tensor& tensor) {
  if (tensor.dim() > static_cast<int64_t>(kDimensions)) {
    throw UsageError("send takes tensors of up to " + std::to_string(kDimensions) + " dimensions and was given one of " +
                     std::to_string(tensor.dim()) + ": reshape it.");
  }
  TensorHeader header;
  header.dtype = static_cast<int64_t>(tensor.scalar_type());
  header.device_type = static_cast<int64_t>(tensor.device().type());
  header.dimensions = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), header.sizes.begin());
  return header;
}

at::Tensor TensorHeader::room(at::Device device) const {
  const bool intact = mark == kMark && dtype >= 0 && dtype < static_cast<int64_t>(at::ScalarType::NumOptions) &&
                      dimensions >= 0 && dimensions <= static_cast<int64_t>(kDimensions) &&
                      std::none_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; });
  if (!intact) throw std::runtime_error("what arrived is not the header of a tensor");
  if (device_type != static_cast<int64_t>(at::kCPU) && device_type != static_cast<int64_t>(device.type())) {
    throw std::runtime_error("the tensor that was sent is on " +
                             c10::DeviceTypeName(static_cast<at::DeviceType>(device_type), true) + ", and this rank works on " +
                             device.str() + ": send it from the CPU");
  }
  const at::Device where = device_type == static_cast<int64_t>(at::kCPU) ? at::Device(at::kCPU) : device;
  return at::empty(at::IntArrayRef(sizes.data(), static_cast<size_t>(dimensions)),
                   at::TensorOptions().dtype(static_cast<at::ScalarType>(dtype)).device(where));
}

at::Tensor as_bytes_in_memory(const at::Tensor& contiguous) { return contiguous.view({-1}).view(at::kByte); }

}  // namespace accelerate::detail
