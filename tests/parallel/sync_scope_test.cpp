#include "parallel/parallel_nets.h"

namespace {

using namespace parallel_nets;
using accelerate::TriggerSyncScope;

class TogetherSyncScope : public TogetherParallel {
 protected:
  /// What several passes over everybody's data add up to.
  static Tensors sum_of_passes(const Plain& net, int passes) {
    return gradients_alone(net, [&](auto& twin) { return passes * loss_of(twin.forward(rows_of_all())); });
  }
};

TEST_F(TogetherSyncScope, GradientsUnderNoSyncStayAtHomeUntilTheFirstPassAfterIt) {
  for (const DdpOptions& options :
       {DdpOptions{}, DdpOptions{.gradient_as_bucket_view = true}, DdpOptions{.static_graph = true}}) {
    Plain net;
    auto model = prepared(net, options);
    for (int window = 0; window < 3; ++window) {
      model.zero_grad();
      const auto own = gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows())); });
      {
        auto scope = model.no_sync();
        for (int pass = 1; pass <= 2; ++pass) {
          loss_of(model(rows())).backward();
          if (pass == 1) expect_close(gradients(*net), own);
        }
      }
      backward(loss_of(model(rows())));
      expect_close(gradients(*net), sum_of_passes(net, 3));
      take_step(*net);
    }
    expect_same_everywhere(net->parameters());
  }
}

TEST_F(TogetherSyncScope, ScopesOfSeveralModelsNestAndEndByExceptions) {
  Plain a, b;
  auto first = prepared(a), second = prepared(b);
  try {
    accelerate::NoSyncScope both({first.core(), second.core()});
    auto again = first.no_sync();
    loss_of(second(first(rows()).repeat({1, 2}))).backward();
    throw std::runtime_error("on purpose");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(first.core()->parameters().size(), 4U);
  }
  first.zero_grad();
  second.zero_grad();
  backward(loss_of(second(first(rows()).repeat({1, 2}))));
  expect_same_everywhere(gradients(*a));
  expect_same_everywhere(gradients(*b));
}

TEST_F(TogetherSyncScope, TriggeringMakesTheLastOfSeveralBackwardPassesSynchronise) {
  for (int round = 0; round < 2; ++round) {
    Plain net;
    auto model = prepared(net);
    for (int step = 0; step < 3; ++step) {
      model.zero_grad();
      auto scope = model.no_sync();
      const auto loss_a = loss_of(model(rows())), loss_b = loss_of(model(rows()));
      backward(loss_a);
      {
        TriggerSyncScope triggering(model.core());
        backward(loss_b);
      }
      expect_close(gradients(*net), sum_of_passes(net, 2));
    }
  }
}

TEST_F(TogetherSyncScope, TriggeringDoesNotGoWithASearchForUnusedParameters) {
  if (world() == 1) return;  // no effect
  Plain net;
  auto model = prepared(net, {.find_unused_parameters = true});
  EXPECT_THROW(TriggerSyncScope(model.core()), accelerate::UsageError);
}

TEST_F(TogetherSyncScope, BuffersAreNotSentAfterAPassUnderNoSync) {
  if (world() == 1) return;
  Normalised net;
  auto model = prepared(net);
  backward(loss_of(model(rows())));
  {
    auto scope = model.no_sync();
    loss_of(model(rows())).backward();  // it came after a pass that synchronised: buffers are sent once more
    const auto before = net->norm->running_mean.clone();
    loss_of(model(rows())).backward();
    const auto own = 0.9 * before + 0.1 * net->linear(rows()).mean(0);
    EXPECT_TRUE(torch::allclose(net->norm->running_mean, own, 1e-4, 1e-5));
  }
  backward(loss_of(model(rows())));
}

}  // namespace
