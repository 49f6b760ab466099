#include <accelerate/parallel/join_scope.h>

#include "parallel/parallel_nets.h"

namespace {

using namespace parallel_nets;
using accelerate::JoinScope;

class TogetherJoinScope : public TogetherParallel {
 protected:
  /// Process r has r + 1 batches.
  static bool has_batch(int of_rank, int step) { return step <= of_rank; }
  static int batches() { return rank() + 1; }

  /// One process alone does what all do together.
  template <class Net>
  static void train_alone(Net& twin) {
    for (int step = 0; step < world(); ++step) {
      twin.zero_grad();
      auto total = torch::zeros({});
      for (int r = 0; r < world(); ++r) {
        if (has_batch(r, step)) total = total + loss_of(twin.forward(rows(r) + step)) / world();
      }
      total.backward();
      take_step(twin);
    }
  }
};

TEST_F(TogetherJoinScope, ProcessesWithoutBatchesAddZerosUntilAllHaveNone) {
  const std::vector<DdpOptions> kOptions = {{},
                                            {.bucket_cap_mb = 1, .gradient_as_bucket_view = true},
                                            {.find_unused_parameters = true},
                                            {.comm_hook = accelerate::CommHook::bf16}};
  for (const auto& options : kOptions) {
    Plain net;
    auto model = prepared(net, options);
    auto twin = twin_of(net);
    JoinScope join({model.core()});
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (int step = 0; step < batches(); ++step) {
        model.zero_grad();
        backward(loss_of(model(rows() + step)));
        take_step(*net);
      }
      join.finish();
      train_alone(*twin);
      expect_same_everywhere(net->parameters());
      expect_close(net->parameters(), twin->parameters(), options.comm_hook == accelerate::CommHook::no ? 1e-5 : 2e-2);
    }
  }
}

TEST_F(TogetherJoinScope, AProcessMayHaveNoBatchAtAll) {
  Plain net;
  auto model = prepared(net);
  {
    JoinScope join({model.core()});
    for (int step = 0; step < 3 * rank(); ++step) {
      model.zero_grad();
      backward(loss_of(model(rows())));
      take_step(*net);
    }
    join.finish();
  }
  expect_same_everywhere(net->parameters());
  for (int step = 0; step < 3; ++step) {  // and all go on together
    model.zero_grad();
    const auto expected = gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows_of_all())); });
    backward(loss_of(model(rows())));
    expect_close(gradients(*net), expected);
  }
}

TEST_F(TogetherJoinScope, BuffersAreThoseOfTheLastProcessThatHasABatch) {
  Normalised net;
  auto model = prepared(net);
  for (int epoch = 0; epoch < 2; ++epoch) {
    JoinScope join({model.core()});
    for (int step = 0; step < batches(); ++step) backward(loss_of(model(rows())));
    join.finish();
    expect_same_everywhere(net->buffers());
  }
  EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 2 * world());
}

TEST_F(TogetherJoinScope, AccumulationAndSeveralModelsAreFollowedInWhateverOrderTheyGo) {
  Plain a, b;
  auto first = prepared(a), second = prepared(b);
  JoinScope join({first.core(), second.core()});
  for (int step = 0; step < 2 * batches(); ++step) {
    std::optional<accelerate::NoSyncScope> scope;
    if (step % 2 == 0) scope.emplace(std::vector{first.core(), second.core()});
    backward(loss_of(second(first(rows()).repeat({1, 2}))));
    if (step % 2 == 0) continue;
    backward(loss_of(first(rows())));
    take_step(*a);
    take_step(*b);
    first.zero_grad();
    second.zero_grad();
  }
  join.finish();
  expect_same_everywhere(a->parameters());
  expect_same_everywhere(b->parameters());
  accelerator().wait_for_everyone();
}

TEST_F(TogetherJoinScope, AModelIsInOneScopeAtATime) {
  if (world() == 1) return;  // no effect
  Plain net;
  auto model = prepared(net);
  JoinScope join({model.core()});
  EXPECT_THROW(JoinScope({model.core()}), accelerate::UsageError);
}

}  // namespace
