#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include "capture/graph_device.h"

namespace accelerate::detail {
namespace {

/// One that nobody else is given: what others put on it in the middle of a recording would end that. It stays for good, since
/// memory that a recording leaves belongs to it.
c10::cuda::CUDAStream own_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAGuard on_device(device);
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return c10::cuda::getStreamFromExternal(stream, device);
}

class CudaGraph : public DeviceGraph {
 public:
  void replay() override { graph.replay(); }
  at::cuda::CUDAGraph graph;
};

class CudaGraphs : public GraphDevice {
 public:
  explicit CudaGraphs(c10::Device device)
      : device_(device.index()), stream_(own_stream(device_)), pool_(at::cuda::graph_pool_handle()) {}

  std::unique_ptr<DeviceGraph> record(const std::function<void()>& body) override {
    const c10::cuda::CUDAGuard on_device(device_);
    c10::Event before(at::kCUDA);
    before.record(c10::cuda::getCurrentCUDAStream(device_));
    auto made = std::make_unique<CudaGraph>();
    {
      // The default stream cannot be recorded.
      const c10::cuda::CUDAStreamGuard on_stream(stream_);
      before.block(stream_);
      if (!first_) first_ = record_little();
      // By this thread's calls alone: others, NCCL's watch over its work among them, may keep querying the driver.
      made->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
      try {
        body();
        made->graph.capture_end();
      } catch (...) {
        end_failed(*made);
        throw;
      }
    }
    return made;
  }

 private:
  void end_failed(CudaGraph& graph) {
    try {
      graph.graph.capture_end();  // of one that only `body` has found fault with
      return;
    } catch (...) {
    }
    static_cast<void>(cudaGetLastError());
    try {
      end_allocating();
    } catch (...) {  // it had started
    }
    try {
      record_little();  // up to 2.12 LibTorch's random numbers believe in a recording until one has ended well
    } catch (...) {     // the first error is reported
    }
  }

  std::unique_ptr<CudaGraph> record_little() {
    const at::DisableRecordFunctionGuard unseen;  // by the search for the error
    auto made = std::make_unique<CudaGraph>();
    made->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    at::zeros({1}, at::TensorOptions().device(at::kCUDA, device_));
    made->graph.capture_end();
    return made;
  }

  /// LibTorch leaves its allocators in the middle of a recording that the driver has ended with an error.
  void end_allocating() {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
    c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
    // Later versions keep pinned memory apart as well.
    const auto end_host = [this](auto* host) {
      if constexpr (requires { host->end_allocate_to_pool(pool_); }) {
        host->end_allocate_to_pool(pool_);
        host->release_pool(pool_);
      }
    };
    end_host(at::getHostAllocator(at::kCUDA));
  }

  c10::DeviceIndex device_;
  c10::cuda::CUDAStream stream_;
  c10::MempoolId_t pool_;
  // LibTorch does not let a pool be used again that the last of its graphs has left.
  std::unique_ptr<CudaGraph> first_;
};

}  // namespace

std::unique_ptr<GraphDevice> make_graph_device(c10::Device device) {
  return device.is_cuda() ? std::make_unique<CudaGraphs>(device) : nullptr;
}

}  // namespace accelerate::detail
