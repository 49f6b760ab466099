#include <torch/torch.h>

#include "support/together.h"

namespace {

class TogetherLocalSgd : public Together {
 protected:
  static bool same_everywhere(const torch::Tensor& tensor) {
    const auto all = accelerator().gather(tensor.detach().reshape({1, -1}));
    return torch::equal(all, all.narrow(0, 0, 1).expand_as(all));
  }
};

TEST_F(TogetherLocalSgd, ProcessesPartAndMeet) {
  torch::manual_seed(1);
  torch::nn::Linear net(3, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator().prepare(net, sgd);
  const auto step = [&, &m = model, &o = optimizer] {
    o.zero_grad();
    accelerator().backward(m(torch::full({2, 3}, 1.0 + rank())).square().sum());
    o.step();
  };
  {
    accelerate::LocalSGD local(accelerator(), model, 3);
    for (int number = 1; number <= 7; ++number) {
      step();
      EXPECT_EQ(same_everywhere(net->weight), world() == 1) << number;
      local.step();
      EXPECT_EQ(same_everywhere(net->weight), world() == 1 || number % 3 == 0) << number;
    }
    local.finish();
    EXPECT_TRUE(same_everywhere(net->weight));
    step();  // as always again
    EXPECT_TRUE(same_everywhere(net->weight));
    local.finish();
    EXPECT_TRUE(same_everywhere(net->weight));
  }
  accelerator().free_memory();
}

TEST_F(TogetherLocalSgd, ItCanBeDisabledOrLeftAndRefusesNoSteps) {
  torch::nn::Linear net(3, 2);
  auto model = accelerator().prepare(net);
  EXPECT_THROW(accelerate::LocalSGD(accelerator(), model, 0), accelerate::UsageError);
  EXPECT_THROW(accelerate::LocalSGD(accelerator(), model, -1, false), accelerate::UsageError);
  const auto gradient = [&] {
    model.zero_grad();
    accelerator().backward(model(torch::full({2, 3}, 1.0 + rank())).square().sum());
    return net->weight.grad();
  };
  {
    accelerate::LocalSGD local(accelerator(), model, 2, /*enabled=*/false);
    EXPECT_TRUE(same_everywhere(gradient()));
    local.step();
  }
  {
    accelerate::LocalSGD local(accelerator(), model, 2);
    EXPECT_EQ(same_everywhere(gradient()), world() == 1);
  }
  EXPECT_TRUE(same_everywhere(gradient())) << "without finish gradients are all-reduced again, too";
  accelerator().free_memory();
}

}  // namespace
