#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <source_location>
#include <vector>

namespace accelerate::detail {

class Communicator;

class DataParallel;
class ModelCore;

/// Processes with different numbers of batches. Those that have some announce the collective they are about to start, and the
/// others join it.
class Join {
 public:
  Join(const std::vector<std::shared_ptr<ModelCore>>& models, std::source_location where);
  ~Join();
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  /// What a forward pass begins with.
  struct Start {
    bool rebuilds_buckets = false;
    bool sends_buffers = false;
  };
  /// Returns the rank whose buffers are sent: the last one that has a batch.
  int tell_forward(size_t model, const Start& start);
  /// Does not wait.
  void tell_all_reduce(size_t model, const at::Tensor& tensor);

  void finish();

 private:
  struct Notice;
  Notice agree(const Notice& mine, const char* call);
  void follow(const Notice& notice);

  std::vector<std::shared_ptr<ModelCore>> models_;  // those that run collectives
  std::shared_ptr<Communicator> communicator_;
  std::source_location where_;
};

}  // namespace accelerate::detail
