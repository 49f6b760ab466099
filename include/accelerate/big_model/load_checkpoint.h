#pragma once

#include <accelerate/big_model/dispatch.h>
#include <accelerate/big_model/infer_auto_device_map.h>
#include <accelerate/distributed/process_state.h>

#include <functional>
#include <source_location>

namespace accelerate {

struct LoadCheckpointOptions {
  /// A map, one place, or a rule: "auto", "balanced", "balanced_low_0", "sequential". Nothing: weights come to where the model's
  /// are, the CPU for those without bytes.
  DeviceMapChoice device_map = {};
  /// What each place may hold, for the rules.
  MaxMemory max_memory = {};
  std::vector<std::string> no_split_module_classes = {};
  /// Where weights are written that go to disk and that the checkpoint does not have as they are needed.
  std::string offload_folder = {};
  bool offload_buffers = false;
  /// What floating-point weights become; by default what the model's are.
  std::optional<c10::ScalarType> dtype = {};
  /// Weights of modules with these names become float32 instead, whatever `dtype` is.
  std::vector<std::string> keep_in_fp32_modules = {};
  /// Changes nothing: Python puts weights for the CPU on disk for a while, since it holds them twice. Here each is read once, to
  /// where it belongs.
  std::optional<bool> offload_state_dict = {};
  std::vector<std::string> preload_module_classes = {};
  /// Names that only the model or only the checkpoint has are errors. Otherwise the former get the values that the constructor
  /// would have given them, and the latter are passed over.
  bool strict = false;
  /// The name in the model of a tensor of the checkpoint, for layers that were renamed; an empty one leaves it out.
  std::function<std::string(const std::string&)> key_mapping = {};
  /// The ranks of this group load the same checkpoint together: the main process of each host reads it and broadcasts the weights
  /// to the others. Nothing may go to disk then.
  std::optional<ProcessState> broadcast_from_rank0 = {};
  /// As in DispatchOptions.
  std::optional<c10::Device> main_device = {};
  std::optional<ByteSize> offload_budget = {};
  bool mmap = false;
  std::vector<std::string> skip_keys = {};
};

namespace detail {
std::shared_ptr<DispatchCore> load_and_dispatch(std::shared_ptr<torch::nn::Module> module, const std::string& checkpoint,
                                                const LoadCheckpointOptions& options, std::source_location where);
/// UsageError for a model that is sharded, which is loaded and not dispatched.
void expect_dispatched(const std::shared_ptr<DispatchCore>& core);
}  // namespace detail

/// Loads weights into a model that may be empty (`InitEmptyWeights`), each to where it belongs. `checkpoint` is a file, an index
/// of shards, a folder with either, or the name of a model ("organisation/name") that was downloaded from the hub. Weights on
/// disk are used where the checkpoint has them, so that nothing is copied. Of a sharded model each rank reads its own parts:
/// prepare it first, then load. CheckpointError or UsageError names what is missing,
/// does not fit or cannot be read; then nothing was changed.
template <class H>
void load_checkpoint_in_model(const H& model, const std::string& checkpoint, const LoadCheckpointOptions& options = {},
                              std::source_location where = std::source_location::current()) {
  detail::load_and_dispatch(detail::module_of(model), checkpoint, options, where);
}

/// The same, and the model to be called:
///
///   auto model = accelerate::load_checkpoint_and_dispatch(net, folder, {.device_map = "auto", .offload_folder = "offload"});
template <class H>
auto load_checkpoint_and_dispatch(const H& model, const std::string& checkpoint, const LoadCheckpointOptions& options = {},
                                  std::source_location where = std::source_location::current()) {
  auto module = detail::module_of(model);
  auto core = detail::load_and_dispatch(module, checkpoint, options, where);
  detail::expect_dispatched(core);
  return DispatchedModel(std::move(module), std::move(core));
}

}  // namespace accelerate
