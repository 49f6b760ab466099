#pragma once

#include <memory>
#include <source_location>
#include <vector>

#include "distributed/communicator.h"
#include "residency/weight_pager.h"
#include "sharding/sharded_unit.h"

namespace accelerate::detail {

/// What `parameter.grad()` of a sharded parameter is: a tensor of the full shape whose bytes are gathered from the shards of all
/// ranks while an operator uses it, and whose changes go back to them. Code that knows nothing of shards - clipping, norms,
/// zero_grad of a module - so does what it does without sharding. It is slow, and all ranks must run it.
class GradientViews final : public WeightPager, public std::enable_shared_from_this<GradientViews> {
 public:
  /// `communicator`: of the ranks that hold one copy, or null for a single process; not kept alive.
  GradientViews(std::vector<std::shared_ptr<ShardedUnit>> units, const std::shared_ptr<Communicator>& communicator,
                std::source_location where);

  /// After a backward pass: parameters whose pieces have gradients show them.
  void show();
  /// Before passes and steps: what was done to the gradients of parameters is done to those of their pieces. One that was dropped
  /// or replaced is dropped or replaced there, too, and one that somebody has given the parameter is given to the piece.
  void take_change(size_t unit, size_t weight);
  /// Parameters show none from now on: a backward pass would add to it. Changes were taken.
  void hide();
  /// Whether the parameter shows the gradient of its piece.
  bool shows(size_t unit, size_t weight) const;
  /// The sharded model has ended: parameters have no gradients any more. Their views would keep this alive, and it them.
  void release();

  /// UsageError in a backward pass, which cannot add to gradients that are averaged.
  void pin(std::span<const WeightAccess> accesses) override;
  void unpin(std::span<const WeightAccess> accesses, bool succeeded) override;

 private:
  struct View {
    at::Tensor gradient;  // made when it is first shown
    bool shown = false;
  };
  struct Gathered {
    at::Tensor full;
    int pins = 0;
  };

  static bool is_view(const View& view, const at::Tensor& gradient);
  void make_view(size_t unit, size_t weight);
  at::Tensor gather(const ShardedUnit& unit) const;
  void evict(size_t unit);

  const std::vector<std::shared_ptr<ShardedUnit>> units_;
  const std::weak_ptr<Communicator> communicator_;
  const int rank_, ranks_;
  const std::source_location where_;
  std::vector<std::vector<View>> views_;
  std::vector<Gathered> gathered_;
};

}  // namespace accelerate::detail
