#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/parallel/ddp_options.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "distributed/watchful_group.h"
#include "parallel/join.h"
#include "parallel/power_sgd_state.h"
#include "rendezvous/torch_private_access.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

class Communicator;

/// The beginning of messages about a backward pass that bypassed a prepared model: where it was, if that is known.
std::string bypassed_model(const torch::nn::Module& module, std::source_location prepared,
                           std::optional<std::source_location> where);

/// Replicas of one model agree on their gradients: the mean over all processes, all-reduced in buckets while the backward pass
/// goes on. What happens when follows PyTorch's DistributedDataParallel.
class DataParallel : public std::enable_shared_from_this<DataParallel> {
 public:
  /// Some parameter of `module` requires a gradient. `where` it was prepared names its collectives.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
               std::source_location where);

  void before_forward();
  /// True when after_forward needs the tensors that the forward pass returned.
  bool wants_outputs() const;
  /// May replace the outputs by equal ones.
  void after_forward(const std::vector<at::Tensor*>& outputs);

  bool expects_gradients() const { return torch_private::expects_gradients(*reducer_); }
  /// Whether forward passes are followed by an all-reduce of gradients and start with one of buffers.
  struct Syncs {
    bool gradients = true;
    bool buffers = true;
    /// Gradients hold backward passes of this rank that were not averaged over the ranks.
    bool local_gradients = false;
  };
  const Syncs& syncs() const { return syncs_; }
  void set_syncs(const Syncs& syncs) { syncs_ = syncs; }
  void set_syncs(bool gradients, bool buffers) {
    syncs_.gradients = gradients;
    syncs_.buffers = buffers;
  }
  /// After a backward pass, at `where` if that is known: UsageError when it reached the parameters although its forward pass did
  /// not go through this model, so that gradients are those of this rank alone. Allowed under no_sync.
  void check_backward(std::optional<std::source_location> where);
  /// Before a step: the same, and UsageError when its gradients were not synchronised. Under no_sync ranks may step on their own.
  void check_step();
  /// Another prepared model has some of these parameters and synchronises them: passes of that one are not reported.
  void share_parameters() { shares_parameters_ = true; }
  /// Steps under no_sync are meant: ranks average their weights (LocalSGD).
  void expect_local_steps() { expects_local_steps_ = true; }
  /// Whether ranks may have different weights, because they have stepped under no_sync.
  bool stepped_alone() const { return stepped_alone_; }
  /// All ranks have the same weights again.
  void weights_averaged() { stepped_alone_ = syncs_.local_gradients = false; }
  /// UsageError where the reducer cannot be rebuilt.
  void check_rebuild() const;
  /// Parameters of the module were frozen or unfrozen, or have another dtype or device: rebuilds the reducer. On all ranks.
  void rebuild();
  /// How often that was.
  int rebuilds() const { return rebuilds_; }
  /// The next backward pass all-reduces gradients, also those of forward passes that were not to.
  void expect_gradients();
  /// Whether collectives are as they will be: buckets are put in another order once.
  bool is_settled() const {
    return !torch_private::will_rebuild(*reducer_) && !(syncs_.gradients && reducer_->should_rebuild_buckets());
  }
  /// Whatever passes were recorded, none of them has happened (see StepRecording).
  void forget_recorded_pass() { torch_private::forget_pass(*reducer_); }

  /// Names of the trained parameters in the order in which their gradients came, of which buckets are made; empty while it is not
  /// known.
  std::vector<std::string> gradient_order() const;
  /// The next forward pass makes buckets of such an order. Where a gradient lies in a bucket decides how the all-reduce of three
  /// ranks and more rounds it, so only a resumed run with the same buckets has the same bits. One of other parameters is ignored.
  void expect_gradient_order(const std::vector<std::string>& names);

  /// What the hook that gradients travel by remembers of this process, with the order of buckets that it belongs to; nothing when
  /// it remembers nothing.
  std::optional<StateDict> hook_state() const;
  /// Restores such a state, before the next forward pass. UsageError when it does not fit the model.
  void load_hook_state(const StateDict& state);

  /// A backward pass has reached the outputs.
  void outputs_reached();

  /// Until `join` is null, it is notified before collectives begin, for model `number`.
  void set_join(Join* join, size_t number);
  bool joined() const { return join_ != nullptr; }
  /// Does what a forward pass of others begins with.
  void follow_forward(const Join::Start& start, int source, const char* call, std::source_location where);
  /// Everybody gets the weights of `source`, and its buffers when they are sent at all.
  void broadcast_all(int source, const char* call, std::source_location where);

 private:
  /// Positions of the parameters of these names. UsageError for one that is not trained.
  std::vector<size_t> numbers_of(const std::vector<std::string>& names) const;
  struct Trained;
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
               std::source_location where, const Trained& trained);

  void make_reducer_for(const Trained& trained);
  /// Notes what the last backward pass did to the gradients; returns whether it bypassed this model.
  bool note_backward();
  void check_recordable() const;
  void follow_stream();
  void prepare_for_backward(const std::vector<at::Tensor>& outputs);
  void rebuild_buckets(const char* call, std::source_location where);
  void broadcast_buffers(int source, const char* call, std::source_location where);
  [[noreturn]] void explain(const std::string& problem) const;

  const std::shared_ptr<torch::nn::Module> module_;
  Communicator& communicator_;
  const DdpOptions options_;
  const std::source_location where_;
  const bool has_buffers_;
  const c10::intrusive_ptr<WatchfulGroup> group_;
  std::vector<std::string> names_;  // of what the reducer reduces
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;       // a reducer that looks for unused parameters takes it for granted
  std::shared_ptr<PowerSgdState> hook_state_;  // null for a hook that remembers nothing
  Syncs syncs_;
  bool awaits_backward_ = false;  // a pass that is reduced
  bool local_forward_ = false;    // the newest forward pass was made under no_sync
  bool shares_parameters_ = false, stepped_alone_ = false, expects_local_steps_ = false;
  int rebuilds_ = 0;
  std::optional<c10::Stream> stream_;  // that gradients are added up on, when it is known
  bool first_graph_seen_ = false;
  Join* join_ = nullptr;
  size_t number_in_join_ = 0;
};

}  // namespace accelerate::detail
