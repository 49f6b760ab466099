#pragma once

#include <accelerate/checkpoint/tensor_dict.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include "distributed/communicator.h"
#include "residency/copy_lane.h"
#include "residency/slots.h"
#include "sharding/gradient_views.h"
#include "sharding/shard_gatherer.h"
#include "sharding/sharded_unit.h"

namespace accelerate::detail {

/// The groups that gradients are reduced in. A group of one process that nobody launched is null.
struct ReduceGroups {
  /// All ranks of the run.
  std::shared_ptr<Communicator> world;
  /// Those that hold one copy of the weights.
  std::shared_ptr<Communicator> shard;
  /// Those that hold the same shard of different copies; null where there is one copy.
  std::shared_ptr<Communicator> replicate;

  int world_size() const { return world ? world->size() : 1; }
  int shard_size() const { return shard ? shard->size() : 1; }
  int shard_rank() const { return shard ? shard->rank() : 0; }
};

struct ReduceOptions {
  /// Not given: that of the gathered weights.
  std::optional<c10::ScalarType> dtype = {};
  /// Ranks may use different parameters of a unit: all units are reduced at the end of a backward pass, in one order.
  bool find_unused_parameters = false;
};

/// Averages gradients over all ranks, so that each gets those of its shard: a reduce-scatter a unit, started in the backward pass
/// as soon as the unit's gradients are complete.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  /// `whole`: parameters that each rank holds whole; their gradients are all-reduced at the end of a backward pass.
  GradientReducer(std::vector<std::shared_ptr<ShardedUnit>> units, std::vector<NamedWeight> whole,
                  std::shared_ptr<ShardGatherer> gatherer, std::shared_ptr<GradientViews> views, ReduceGroups groups,
                  const ReduceOptions& options, std::source_location where);
  /// From now on it is given the gradients of all backward passes.
  void install_hooks();

  bool syncs() const { return syncs_; }
  /// Off: backward passes of forward passes from now on add up gradients on each rank. They are reduced by the first one after
  /// it.
  void set_syncs(bool on) { syncs_ = on || groups_.world_size() == 1; }
  /// A forward pass begins whose gradients are reduced, or not, as was set.
  void begin_forward();
  /// The next backward pass reduces gradients, whatever its forward pass was to do.
  void expect_sync() { pass_syncs_ = true; }

  /// A backward pass begins whose end is told.
  void begin_backward() {
    guided_ = hidden_ = true;
    hide_gradients();
  }
  /// It has ended: reduces what is left, and waits for all. DistributedError when a rank is missing.
  void finish_backward();
  /// It ended with an exception: what it computed is dropped.
  void abort_backward();

  /// What was done to the gradients that parameters show is done to those that are kept here and by pieces.
  void take_gradient_changes();
  /// Whether gradients wait that were not reduced. Until then parameters show them: the sums of this rank.
  bool has_local_gradients() const;
  /// They, by the names of their parameters.
  TensorDict local_gradients() const;
  void set_local_gradient(const std::string& name, const at::Tensor& gradient);
  /// The gradients of these parameters were dropped or set to zero: those that are kept here, and what parameters show of them.
  void drop_gradients(const std::function<bool(const ShardedWeight&)>& are_dropped);
  /// Whether what passes do on the host is the same every time. Otherwise unused parameters are asked about.
  bool is_settled() const { return asks_ == Asks::never || groups_.world_size() == 1; }
  /// A recorded step is replayed, which gives pieces gradients without passes of this rank.
  void begin_replay() { hide_gradients(); }
  void end_replay();

  /// Whether gradients were reduced since the last call.
  bool take_reduced() { return std::exchange(reduced_, false); }

 private:
  struct Hook;
  struct PreHook;
  /// The gradients of a unit that were computed and are not reduced yet.
  struct Pending {
    at::Tensor slot = {}, flat = {};
    std::vector<bool> used = {};   // the weights that have one
    std::vector<bool> shown = {};  // by their parameters
    bool averaged = false;         // divided by the number of ranks already
    // Of the pass that is under way.
    std::vector<bool> arrived = {};
    size_t missing = 0;
  };
  struct Reduction {
    size_t unit;
    Pending gradients;
    at::Tensor sent, result;
    BackgroundCollective collective;
  };
  /// A shard of gradients on its way to the host memory where the optimizer steps.
  struct Arrival {
    size_t unit;
    std::vector<bool> used;
    at::Tensor device, host;
    std::shared_ptr<const c10::Event> event;
  };

  void add(size_t unit, size_t weight, const at::Tensor& parameter);
  void drop_local_gradients();
  /// A gradient is about to be added to its parameter.
  void enter_backward();
  void finish_with_pass();
  void show_gradients();
  void open_pass();
  void begin(size_t unit, bool accumulates);
  /// A pass begins in which all trained weights of the unit are expected to get gradients.
  void expect_all(size_t unit);
  void show_local_gradients();
  void hide_gradients();
  void drop(size_t unit);
  void start(size_t unit);
  void settle(Reduction reduction);
  void begin_arrival(size_t unit, std::vector<bool> used, at::Tensor device);
  void finish_arrivals(size_t but);
  /// `mine`: what is reduced of the unit's gradients in this rank's shard.
  void give_all(size_t unit, const std::vector<bool>& used, const at::Tensor& mine);
  void give(ShardedWeight& weight, const at::Tensor& gradient) const;
  void give_unused();
  void reduce_whole();
  Slots& slots() { return *slots_; }

  const std::vector<std::shared_ptr<ShardedUnit>> units_;
  const std::vector<NamedWeight> whole_;
  const std::shared_ptr<ShardGatherer> gatherer_;
  const std::shared_ptr<GradientViews> views_;
  const ReduceGroups groups_;
  const std::optional<c10::ScalarType> reduce_dtype_;
  const std::source_location where_;
  std::optional<Slots> slots_;
  std::vector<Pending> pending_;
  std::deque<Reduction> reductions_;
  std::deque<Arrival> arrivals_;
  std::optional<CopyLane> lane_;            // of gradients to the host, beside the computing
  std::vector<at::Tensor> host_gradients_;  // by unit, page-locked
  /// Gradients of weights that this rank did not use, and others may have.
  struct Unused {
    size_t unit, weight;
    at::Tensor gradient;
  };
  std::vector<Unused> unused_;
  enum class Asks { first, never, always };
  Asks asks_ = Asks::first;  // the others, whether they used it
  bool syncs_ = true, pass_syncs_ = true, guided_ = false, hidden_ = false, open_ = false, whole_reached_ = false,
       reduced_ = false, warned_ = false;
};

}  // namespace accelerate::detail
