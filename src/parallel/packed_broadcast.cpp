#include "parallel/packed_broadcast.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <string>

#include "distributed/communicator.h"

namespace accelerate::detail {
namespace {

/// As much is packed together; what is larger travels alone, without a copy.
constexpr int64_t kPackBytes = 250 * 1024 * 1024;

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().view({-1}).view(at::kByte); }

/// Elements that an expanded tensor repeats are one in memory, and are written once.
void write_into(at::Tensor tensor, at::Tensor values) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0) continue;
    tensor = tensor.narrow(dim, 0, 1);
    values = values.narrow(dim, 0, 1);
  }
  tensor.copy_(values);
}

void broadcast_pack(Communicator& communicator, const std::vector<at::Tensor>& tensors, int from, const char* call,
                    std::source_location where) {
  if (tensors.size() == 1 && tensors.front().is_contiguous()) {
    at::Tensor alone = bytes_of(tensors.front());  // like any other pack: on another rank its strides may be others
    communicator.broadcast(alone, from, call, where);
    return;
  }
  int64_t total = 0;
  for (const auto& tensor : tensors) total += static_cast<int64_t>(tensor.nbytes());
  at::Tensor pack;
  if (communicator.rank() == from) {
    std::vector<at::Tensor> parts;
    for (const auto& tensor : tensors) parts.push_back(bytes_of(tensor));
    pack = at::cat(parts);
  } else {
    pack = at::empty({total}, tensors.front().options().dtype(at::kByte));
  }
  communicator.broadcast(pack, from, call, where);
  if (communicator.rank() == from) return;
  int64_t offset = 0;
  for (const auto& tensor : tensors) {
    const auto size = static_cast<int64_t>(tensor.nbytes());
    write_into(tensor, pack.slice(0, offset, offset + size).view(tensor.scalar_type()).view(tensor.sizes()));
    offset += size;
  }
}

}  // namespace

void broadcast_packed(Communicator& communicator, const std::vector<at::Tensor>& tensors, int from, const char* call,
                      std::source_location where) {
  const c10::NoGradGuard no_grad;
  std::map<std::string, std::vector<at::Tensor>> by_device;
  for (const auto& tensor : tensors) {
    if (tensor.numel() > 0) by_device[tensor.device().str()].push_back(tensor.detach());
  }
  for (auto& [device, group] : by_device) {
    // The widest elements first: then each begins at a multiple of its width.
    std::stable_sort(group.begin(), group.end(),
                     [](const at::Tensor& a, const at::Tensor& b) { return a.element_size() > b.element_size(); });
    std::vector<at::Tensor> pack;
    int64_t size = 0;
    for (const auto& tensor : group) {
      const auto more = static_cast<int64_t>(tensor.nbytes());
      if (!pack.empty() && size + more > kPackBytes) {
        broadcast_pack(communicator, pack, from, call, where);
        pack.clear();
        size = 0;
      }
      pack.push_back(tensor);
      size += more;
    }
    if (!pack.empty()) broadcast_pack(communicator, pack, from, call, where);
  }
}

}  // namespace accelerate::detail
