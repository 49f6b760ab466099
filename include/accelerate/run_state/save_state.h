#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accelerate {

struct SaveStateOptions {
  /// Weights as safetensors files; off: files of torch.save.
  bool safe_serialization = true;
  /// Returns at once; threads copy and write what is there now while training continues. Whatever writes to a weight or to a
  /// state of an optimizer meanwhile waits until it is copied; only writing by a pointer from before the call cannot be seen. On
  /// a GPU they are copied there first, where twice as much memory is free; else before it returns. The next save_state,
  /// load_state or end_training waits for all of it, and throws what went wrong.
  bool async = false;
  /// CheckpointError when weights are not the same on all ranks. Off: the main process's are saved. For hosts of different
  /// kinds, whose processors round differently.
  bool check_replicas = true;
};

struct LoadStateOptions {
  /// Compare the content of every file with what was written, not only its size. For folders that have our manifest.
  bool verify = true;
  /// An epoch that was under way is restarted instead of resumed: for a dataset of another length, or another batch size.
  bool restart_epoch = false;
  /// What all ranks need is read by the main process of each host, which broadcasts it to the others: for slow disks.
  bool broadcast_from_rank0 = false;
};

/// Called before anything is written: may look at the weights of the models, change them, or take some out to save them itself.
/// Those of a model that is saved as shards are not there, only an entry without tensors in their place.
using SaveStateHook = std::function<void(const std::vector<torch::nn::Module*>& models, std::vector<TensorDict>& weights,
                                         const std::string& folder)>;
/// Called before anything is read: may take models out to load them itself.
using LoadStateHook = std::function<void(std::vector<torch::nn::Module*>& models, const std::string& folder)>;

/// A hook stays until this is asked to remove it. Dropping it leaves the hook in place, as in Python.
class HookHandle {
 public:
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

}  // namespace accelerate
