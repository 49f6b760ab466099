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

#include "distributed/communicator.h"
#include "parallel/join.h"
#include "parallel/power_sgd_state.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// c10d's reducer, with a look at what it waits for.
class GradientReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;
  /// The next backward pass exchanges gradients.
  bool expects_gradients() const { return expect_autograd_hooks_; }
  /// The next forward pass rebuilds the buckets, in the order in which gradients came: an exchange.
  bool will_rebuild() const { return should_rebuild_buckets() && !rebuilt_params_.empty(); }
  /// The order in which gradients came, which buckets are made of, by the numbers of parameters; empty when it is not known yet.
  std::vector<size_t> order() const {
    if (!has_rebuilt_bucket_) return {rebuilt_param_indices_.begin(), rebuilt_param_indices_.end()};
    std::vector<size_t> order;
    for (const auto& bucket : buckets_) order.insert(order.end(), bucket.variable_indices.begin(), bucket.variable_indices.end());
    return order;
  }
  /// Gradients are known to come in this order: the next forward pass makes buckets of it, unless it has been done.
  void expect_order(const std::vector<size_t>& order) {
    if (!should_rebuild_buckets()) return;
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    for (const size_t number : order) push_rebuilt_params(number);
  }
  /// The next backward pass shows the static graph. Passes that were not to exchange anything have been counted as such.
  void forget_graph() {
    num_bwd_calls_ = 0;
    first_autograd_hook_called_ = false;
    for (auto& [parameter, uses] : numGradHooksTriggeredMap_) uses = 0;
  }
  c10::Device device() const { return params_.front().device(); }
  /// Gradients are added up on the current stream from now on; before, on the one that was current when the reducer was made.
  void use_current_stream() {
    for (size_t i = 0; i < params_.size(); ++i) {
      grad_accumulators_[i]->clear_input_metadata();
      grad_accumulators_[i]->add_input_metadata(params_[i]);
    }
  }
  /// A backward pass ended in the middle: the next forward pass does not ask for its gradients.
  void forget_pass() {
    require_finalize_ = false;
    first_autograd_hook_called_ = false;
  }
};

/// Replicas of one model agree on their gradients: the mean over all processes, exchanged in buckets while the backward pass goes
/// on. What happens when follows PyTorch's DistributedDataParallel.
class DataParallel : public std::enable_shared_from_this<DataParallel> {
 public:
  /// Some parameter of `module` requires a gradient. `where` it was prepared names its exchanges.
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
               std::source_location where);

  void before_forward();
  /// True when after_forward needs the tensors that the forward pass returned.
  bool wants_outputs() const;
  /// May replace the outputs by equal ones.
  void after_forward(const std::vector<at::Tensor*>& outputs);

  bool expects_gradients() const { return reducer_->expects_gradients(); }
  /// Whether forward passes are followed by an exchange of gradients and start with one of buffers.
  struct Syncs {
    bool gradients = true;
    bool buffers = true;
  };
  const Syncs& syncs() const { return syncs_; }
  void set_syncs(const Syncs& syncs) { syncs_ = syncs; }
  /// The next backward pass exchanges gradients, also those of forward passes that were not to.
  void expect_gradients();
  /// Whether exchanges are as they will be: buckets are put in another order once.
  bool is_settled() const { return !reducer_->will_rebuild() && !(syncs_.gradients && reducer_->should_rebuild_buckets()); }
  /// Whatever passes were recorded, none of them has happened (see StepRecording).
  void forget_recorded_pass() { reducer_->forget_pass(); }

  /// What the hook that gradients travel by remembers of this process, with the order of buckets that it belongs to; nothing when
  /// it remembers nothing.
  std::optional<StateDict> hook_state() const;
  /// Goes on from such a state, before the next forward pass. UsageError when it does not fit the model.
  void load_hook_state(const StateDict& state);

  /// A backward pass has reached the outputs.
  void outputs_reached();

  /// Until `join` is null, it is told of exchanges before they begin, for model `number`.
  void set_join(Join* join, size_t number);
  bool joined() const { return join_ != nullptr; }
  /// Does what a forward pass of others begins with.
  void follow_forward(const Join::Start& start, int source, const char* call, std::source_location where);
  /// Everybody gets the weights of `source`, and its buffers when they are sent at all.
  void broadcast_all(int source, const char* call, std::source_location where);

 private:
  struct Trained;
  DataParallel(std::shared_ptr<torch::nn::Module> module, Communicator& communicator, const DdpOptions& options,
               std::source_location where, Trained trained);

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
  const std::vector<std::string> names_;
  const bool has_buffers_;
  const c10::intrusive_ptr<WatchfulGroup> group_;
  const std::shared_ptr<GradientReducer> reducer_;
  const std::shared_ptr<c10d::Logger> logger_;  // a reducer that looks for unused parameters takes it for granted
  std::shared_ptr<PowerSgdState> hook_state_;   // null for a hook that remembers nothing
  Syncs syncs_;
  std::optional<c10::Stream> stream_;  // that gradients are added up on, when it is known
  bool first_graph_seen_ = false;
  Join* join_ = nullptr;
  size_t number_in_join_ = 0;
};

}  // namespace accelerate::detail
