#pragma once

#include <accelerate/big_model/dispatch.h>
#include <accelerate/distributed/process_state.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
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

/// The result of a dispatch: where weights are, and what pages them in.
class DispatchCore {
 public:
  DeviceMap map;
  c10::Device main_device = c10::kCPU;
  /// Where calls begin.
  c10::Device input_device = c10::kCPU;
  /// Weights are on several devices, so that calls cross borders.
  bool crosses_devices = false;
  std::vector<std::string> skip_keys;
  std::shared_ptr<Pager> pager;
};

/// Whether a weight is of one of these modules: whole names, or parts of them that end with a component.
bool is_kept_in_float32(const std::string& name, const std::vector<std::string>& modules);

/// Puts the weights of a model into their places. First all that can fail: files are opened, read and staged, memory is taken,
/// threads are started. Only then staged files are renamed and the model is changed.
class Dispatcher {
 public:
  Dispatcher(const torch::nn::Module& module, DeviceMap map, const DispatchOptions& options);

  struct CheckpointRules {
    std::string path;
    bool strict = false;
    std::optional<at::ScalarType> dtype = {};
    std::vector<std::string> in_float32 = {};  // parts of names that have another
    std::function<std::string(const std::string&)> new_name = {};
    /// The ranks that load it together; the first of each host reads.
    std::optional<ProcessState> together = {};
    std::source_location where = {};
  };
  /// Weights come from a checkpoint instead of from the model. CheckpointError when it does not fit.
  void take_checkpoint(const CheckpointRules& rules);
  /// Weights that go to disk come from the folder that they would be written to, if it has them all.
  void take_offloaded();
  c10::Device main_device() const { return main_device_; }
  /// `limit`: what the main device may hold in all.
  std::shared_ptr<DispatchCore> run(std::optional<uint64_t> limit);

 private:
  struct Weight {
    const WeightGroup* group;
    const StoredTensor* stored = nullptr;
    /// What each tensor of the group gets, without bytes where it is offloaded; none when they stay as they are.
    std::vector<at::Tensor> data = {};
    std::shared_ptr<WeightStore> store = {};  // of one that is offloaded
    const StoredTensor* written = nullptr;    // where the folder for offloaded weights has it already
    at::ScalarType dtype = at::kFloat;
  };

  /// Finds the weights in it.
  void fit_checkpoint(const CheckpointRules& rules);
  void report(const CheckpointRules& rules, const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
              const std::vector<std::string>& misshapen) const;
  Place place_of(const WeightGroup& group) const;
  /// Whether weights there are paged in to the main device.
  bool is_offloaded(const Place& place) const { return place.is_disk() || (place.is_cpu() && !main_device_.is_cpu()); }
  /// Whether the checkpoint does not have it as it is needed.
  bool converts(const Weight& weight) const;
  bool may_map(const StoredTensor& stored) const;
  /// Whether it is one that goes to disk, and is computed with in the pages of its file.
  bool is_mapped(const Weight& weight) const;
  /// How large it will be.
  uint64_t bytes_needed(const Weight& weight) const;
  /// The elements of a tensor of the checkpoint, of which this rank may be no reader.
  at::Tensor read(const StoredTensor& stored) const;
  /// All elements of a group on the CPU as they will be.
  at::Tensor value_of(const Weight& weight) const;
  at::Tensor storage_of(const Weight& weight) const;
  /// What its tensors will be: `elements`, or for a group that is not one tensor, views of their storage. UsageError when one
  /// cannot be that.
  static void set_data(Weight& weight, const at::Tensor& elements);
  void prepare_resident(Weight& weight, c10::Device device);
  void prepare_on_disk(Weight& weight);
  void prepare_on_host(Weight& weight);
  std::shared_ptr<WeightStore> store_at(const StoredTensor& stored);
  void read_all();
  OffloadWriter& writer(const std::string& weight);
  /// What offloaded weights may take.
  uint64_t budget(std::optional<uint64_t> limit) const;
  std::shared_ptr<Pager> make_pager(uint64_t budget);
  /// What calls have to know of where the weights come to.
  void prepare_calls(DispatchCore& core) const;
  /// Changes the model. Nothing in it can fail.
  void commit(bool crosses_devices) const;
  /// Whether it is one that goes to disk.
  bool goes_to_disk(const Weight& weight) const;

  const torch::nn::Module& module_;
  DeviceMap map_;
  DispatchOptions options_;
  c10::Device main_device_;
  std::vector<WeightGroup> groups_;
  std::vector<StoredTensor> stored_, offloaded_;
  std::unordered_map<std::string, const StoredTensor*> by_name_;  // of the model
  std::vector<Weight> weights_;
  std::map<Place, std::vector<Transfer::Load>> loads_;  // by where they go
  PinnedMemory pinned_;
  std::unordered_map<std::string, std::shared_ptr<const CheckpointFile>> files_;
  std::optional<OffloadWriter> writer_;
  /// Where ranks load together: all of them, and those of this host.
  std::optional<ProcessState> together_, host_;
  std::source_location where_;
};

}  // namespace accelerate::detail
