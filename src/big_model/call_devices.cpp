#include <accelerate/big_model/call_devices.h>

namespace accelerate::detail {

void CallDevices::move(at::Tensor& tensor, c10::Device device) { tensor = tensor.to(device); }

}  // namespace accelerate::detail
