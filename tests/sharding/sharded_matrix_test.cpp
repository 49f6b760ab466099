#include <cstdlib>
#include <map>
#include <tuple>

#include "sharding/sharded_nets.h"

namespace {

using namespace sharded_nets;
using accelerate::BackwardPrefetch;
using accelerate::FsdpOptions;
using accelerate::ShardingStrategy;

/// What a run does beside sharding.
struct Manner {
  Stepper stepper;
  bool accumulates, clips, freezes, checkpoints;

  RunOptions options(int steps) const {
    return {.stepper = stepper,
            .steps = steps,
            .accumulation = accumulates ? 2 : 1,
            .clip = clips ? 0.5 : 0,
            .freeze = freezes,
            .checkpoints = checkpoints};
  }
  friend auto operator<=>(const Manner&, const Manner&) = default;
};

/// Ways to shard, and to wrap.
std::vector<FsdpOptions> strategies(int ranks) {
  using enum ShardingStrategy;
  using enum BackwardPrefetch;
  std::vector<FsdpOptions> all = {by_block(),
                                  by_block({.sharding_strategy = shard_grad_op}),
                                  by_block({.sharding_strategy = no_shard}),
                                  by_block({.reshard_after_forward = false}),
                                  {},
                                  {.min_num_params = 500},
                                  by_block({.backward_prefetch = backward_post, .forward_prefetch = false}),
                                  by_block({.backward_prefetch = no_prefetch, .limit_all_gathers = false}),
                                  by_block({.ignored_modules = {"blocks\\.1", "norm"}}),
                                  by_block({.cpu_offload = true}),
                                  by_block({.sharding_strategy = hybrid_shard})};
  if (ranks % 2 == 0) {
    all.push_back(by_block({.sharding_strategy = hybrid_shard, .shard_group_size = 2}));
    all.push_back(by_block({.sharding_strategy = hybrid_shard_zero2, .shard_group_size = ranks / 2}));
  }
  return all;
}

/// All of them, or a few: those that are three apart differ in everything.
std::vector<Manner> manners(bool full) {
  if (!full)
    return {{Stepper::sgd, false, false, false, false}, {Stepper::momentum, true, false, true, false},
            {Stepper::adamw, true, false, false, true}, {Stepper::momentum, true, true, true, true},
            {Stepper::adamw, false, true, false, true}, {Stepper::sgd, false, true, true, false}};
  std::vector<Manner> all;
  for (const auto stepper : {Stepper::sgd, Stepper::momentum, Stepper::adamw}) {
    for (int bits = 0; bits < 16; ++bits)
      all.push_back({stepper, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0});
  }
  return all;
}

class TogetherShardingMatrix : public Together {};

/// The full counts are given by a variable.
const char* given_steps() { return std::getenv("ACCELERATE_TEST_STEPS"); }

TEST_F(TogetherShardingMatrix, EveryStrategyTrainsAsDataParallelismInEveryManner) {
  const char* given = given_steps();
  const int steps = given ? std::atoi(given) : 4;
  const auto kinds = strategies(world());
  size_t row = 0;
  for (const auto& manner : manners(given != nullptr)) {
    const auto plain = train(manner.options(steps));
    // With two ranks there is one order in which gradients are added; a norm is added up shard by shard.
    const bool to_the_bit = world() <= 2 && !manner.clips && manner.stepper != Stepper::adamw;
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      // Each kind in two manners, which differ in everything; with as many ranks as others cover, in one.
      if (!given && (kind + row) % (world() == 2 || world() == 3 ? 3 : 6) != 0) continue;
      SCOPED_TRACE("strategy " + std::to_string(kind) + ", manner " + std::to_string(row));
      auto options = manner.options(steps);
      options.fsdp = kinds[kind];
      expect_close(train(options), plain, to_the_bit ? 0 : 1e-5);
    }
    ++row;
  }
}

TEST_F(TogetherShardingMatrix, ARunInBfloat16FollowsDataParallelismWithTheSameReduction) {
  using accelerate::Precision;
  RunOptions options{.stepper = Stepper::sgd,
                     .steps = given_steps() ? std::atoi(given_steps()) : 6,
                     .precision = Precision::bf16,
                     .comm_hook = accelerate::CommHook::bf16};
  const auto plain = train(options);
  options.comm_hook.reset();
  const auto kinds = strategies(world());
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    if (!given_steps() && kind % 3 != 0) continue;
    SCOPED_TRACE("strategy " + std::to_string(kind));
    options.fsdp = kinds[kind];
    const auto sharded = train(options);
    EXPECT_EQ(plain.losses.size(), sharded.losses.size());
    for (size_t i = 0; i < plain.losses.size(); ++i)
      EXPECT_NEAR(plain.losses[i], sharded.losses[i], 1e-2) << "loss of step " << i;
  }
}

}  // namespace
