#include "parallel/bucket_size.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "distributed/communicator.h"

namespace accelerate::detail {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
/// Of the time of an all-reduce, so much at most is not moving bytes.
constexpr double kLatencyShare = 0.1;
constexpr int kLeastBucketMb = 1, kMostBucketMb = 100;

/// What is measured: the first one is hardly more than its latency.
constexpr int64_t kSmallMessage = 4 * 1024, kLargeMessage = 4 * 1024 * 1024;
constexpr int kTrials = 3;

/// The quickest of some all-reduces: whatever else a machine does makes them slower only.
double quickest_all_reduce(Communicator& communicator, int64_t bytes, c10::Device device, std::source_location where) {
  at::Tensor tensor = at::zeros({bytes / 4}, at::TensorOptions(device).dtype(at::kFloat));
  double quickest = INFINITY;
  for (int i = 0; i <= kTrials; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    communicator.all_reduce(tensor, c10d::ReduceOp::SUM, "prepare", where);
    tensor[0].item<float>();  // a GPU has not done it before
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (i > 0) quickest = std::min(quickest, taken.count());  // the first one makes connections
  }
  return quickest;
}

CollectiveSpeed measured_speed(Communicator& communicator, c10::Device device, std::source_location where) {
  const double small = quickest_all_reduce(communicator, kSmallMessage, device, where);
  const double large = quickest_all_reduce(communicator, kLargeMessage, device, where);
  return {.latency = small, .bytes_per_second = static_cast<double>(kLargeMessage - kSmallMessage) / (large - small)};
}

}  // namespace

int bucket_mb_for(const CollectiveSpeed& speed) {
  const double bytes = speed.latency * (1 - kLatencyShare) / kLatencyShare * speed.bytes_per_second;
  // A measurement may be nonsense, as when the larger all-reduce was the faster one.
  if (!(bytes > 0)) return DdpOptions{}.bucket_cap_mb;
  return static_cast<int>(std::clamp(std::ceil(bytes / kMiB), double{kLeastBucketMb}, double{kMostBucketMb}));
}

DdpOptions with_bucket_size(const DdpOptions& options, Communicator& communicator, c10::Device device,
                            std::source_location where) {
  if (options.bucket_cap_mb > 0) return options;
  at::Tensor chosen = at::empty({1}, at::TensorOptions(at::kLong));
  chosen.fill_(bucket_mb_for(measured_speed(communicator, device, where)));
  communicator.broadcast(chosen, 0, "prepare", where);
  DdpOptions sized = options;
  sized.bucket_cap_mb = chosen.item<int>();
  return sized;
}

}  // namespace accelerate::detail
