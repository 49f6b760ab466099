#pragma once

#include <accelerate/big_model/dispatch.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "big_model/weight_groups.h"
#include "checkpoint/offload_index.h"
#include "checkpoint/stored_tensors.h"
#include "residency/host_memory.h"
#include "residency/pager.h"
#include "residency/transfer.h"

namespace accelerate::detail {

/// What is left of a dispatch: where things are, and who brings them.
class DispatchCore {
 public:
  DeviceMap map;
  c10::Device main_device = c10::kCPU;
  std::shared_ptr<residency::Pager> pager;
};

/// Puts the weights of a model into their places. First everything is decided, read and written; only then the model is changed,
/// which cannot fail.
class Dispatcher {
 public:
  Dispatcher(const torch::nn::Module& module, DeviceMap map, const DispatchOptions& options);

  struct CheckpointRules {
    std::string path;
    bool strict = false;
    std::optional<at::ScalarType> dtype = {};
    std::function<std::string(const std::string&)> new_name = {};
  };
  /// Weights come from a checkpoint instead of from the model. CheckpointError when it does not fit.
  void take_checkpoint(const CheckpointRules& rules);
  c10::Device main_device() const { return main_device_; }
  /// `limit`: what the main device may hold in all.
  std::shared_ptr<DispatchCore> run(std::optional<uint64_t> limit);

 private:
  struct Weight {
    const WeightGroup* group;
    const StoredTensor* stored = nullptr;
    /// What it will be; for a group that is not one tensor, its storage as bytes.
    at::Tensor resident = {};
    std::shared_ptr<residency::WeightHome> home = {};  // of one that is offloaded
    at::ScalarType dtype = at::kFloat;
  };

  void report(const CheckpointRules& rules, const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
              const std::vector<std::string>& misshapen) const;
  Place place_of(const WeightGroup& group) const;
  /// Whether weights there are brought to the main device to be computed with.
  bool is_offloaded(const Place& place) const { return place.is_disk() || (place.is_cpu() && !main_device_.is_cpu()); }
  /// Whether the checkpoint does not have it as it is needed.
  bool converts(const Weight& weight) const;
  bool may_map(const StoredTensor& stored) const;
  /// All elements of a group on the CPU as they will be.
  at::Tensor value_of(const Weight& weight) const;
  at::Tensor storage_of(const Weight& weight) const;
  void prepare_resident(Weight& weight, c10::Device device);
  void prepare_on_disk(Weight& weight);
  void prepare_on_host(Weight& weight);
  std::shared_ptr<residency::WeightHome> home_at(const StoredTensor& stored);
  void read_all();
  OffloadWriter& writer(const std::string& weight);
  /// Changes the model.
  void commit(const Weight& weight, const at::Tensor& elements);
  std::shared_ptr<residency::Pager> make_pager(std::optional<uint64_t> limit);

  const torch::nn::Module& module_;
  DeviceMap map_;
  DispatchOptions options_;
  c10::Device main_device_;
  std::vector<WeightGroup> groups_;
  std::vector<StoredTensor> stored_;
  std::unordered_map<std::string, const StoredTensor*> by_name_;  // of the model
  std::vector<Weight> weights_;
  std::map<Place, std::vector<residency::Transfer::Load>> loads_;  // by where they go
  residency::PinnedMemory pinned_;
  std::unordered_map<std::string, std::shared_ptr<const residency::CheckpointFile>> files_;
  std::optional<OffloadWriter> writer_;
};

}  // namespace accelerate::detail
