#include <accelerate/parallel/sync_batch_norm.h>

#include "parallel/parallel_nets.h"

namespace {

using namespace parallel_nets;

/// Layers in members and in containers.
struct NestedNormsImpl : torch::nn::Module {
  NestedNormsImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(1, 4, 2));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    rest = register_module("rest", torch::nn::Sequential(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::Tanh()));
    list = register_module("list", torch::nn::ModuleList(torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto hidden = torch::relu(norm(convolution(x))).mean({2, 3});
    hidden = list->ptr<torch::nn::BatchNorm1dImpl>(0)->forward(rest->forward(hidden));
    return list->ptr<torch::nn::LinearImpl>(1)->forward(hidden);
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Sequential rest{nullptr};
  torch::nn::ModuleList list{nullptr};
};
TORCH_MODULE(NestedNorms);

class TogetherSyncBatchNorm : public TogetherParallel {
 protected:
  static torch::Tensor images(int of_rank = rank()) {
    return torch::sin(torch::arange(27, torch::kFloat).view({3, 1, 3, 3}) * 0.9 + 5 * of_rank);
  }
  static torch::Tensor images_of_all() {
    std::vector<torch::Tensor> all;
    for (int r = 0; r < world(); ++r) all.push_back(images(r));
    return torch::cat(all);
  }
};

TEST_F(TogetherSyncBatchNorm, AModelTrainsAsOneProcessWithTheJoinedBatchWould) {
  NestedNorms net;
  EXPECT_EQ(accelerate::convert_sync_batchnorm(state(), *net), 3);
  EXPECT_EQ(accelerate::convert_sync_batchnorm(state(), *net), 3);  // changes nothing
  auto model = prepared(net);
  auto twin = twin_of(net);
  for (int step = 0; step < 4; ++step) {
    twin->zero_grad();
    const auto expected = twin->forward(images_of_all());
    loss_of(expected).backward();
    model.zero_grad();
    const auto output = model(images());
    backward(loss_of(output));
    expect_close({output}, {expected.narrow(0, 3 * rank(), 3)}, 1e-4);
    expect_close(gradients(*net), gradients(*twin), 1e-4);
    take_step(*net);
    take_step(*twin);
  }
  const auto ours = net->named_buffers(), theirs = twin->named_buffers();
  for (const auto& item : ours) expect_close({item.value().to(torch::kFloat)}, {theirs[item.key()].to(torch::kFloat)}, 1e-4);
  net->eval();
  twin->eval();
  torch::NoGradGuard no_grad;
  expect_close({net->forward(images())}, {twin->forward(images())}, 1e-3);
}

TEST_F(TogetherSyncBatchNorm, WhatIsNotConvertedIsAsItWas) {
  torch::nn::BatchNorm1d converted(4), plain(4);
  accelerate::convert_sync_batchnorm(state(), *converted);
  const auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(converted->clone());
  const auto expected = plain(rows());
  EXPECT_TRUE(torch::equal(copy->forward(rows()), expected)) << "a copy is an ordinary one";
  EXPECT_EQ(torch::allclose(converted(rows()), expected), world() == 1);
  converted->eval();
  plain->eval();
  plain->running_mean.copy_(converted->running_mean);
  plain->running_var.copy_(converted->running_var);
  EXPECT_TRUE(torch::equal(converted(rows(0)), plain(rows(0)))) << "evaluation runs no collective";
  EXPECT_EQ(accelerate::convert_sync_batchnorm(state(), *torch::nn::Linear(2, 2)), 0);
}

TEST_F(TogetherSyncBatchNorm, AConvertedLayerMayChangeItsDtype) {
  torch::nn::BatchNorm1d layer(4);
  accelerate::convert_sync_batchnorm(state(), *layer);
  layer->to(torch::kDouble);
  torch::nn::BatchNorm1d joined(4);
  joined->to(torch::kDouble);
  const auto output = layer(rows().to(torch::kDouble));
  const auto expected = joined(rows_of_all().to(torch::kDouble)).narrow(0, 3 * rank(), 3);
  EXPECT_EQ(output.scalar_type(), torch::kDouble);
  expect_close({output}, {expected}, 1e-12);
}

TEST_F(TogetherSyncBatchNorm, LayersWithoutWeightsAndStatisticsEvaluateByTheirOwnBatch) {
  const auto options = torch::nn::BatchNormOptions(4).affine(false).track_running_stats(false);
  torch::nn::BatchNorm1d layer(options), plain(options);
  accelerate::convert_sync_batchnorm(state(), *layer);
  EXPECT_TRUE(accelerate::state_dict(*layer).empty()) << "nothing is added to checkpoints";
  EXPECT_EQ(torch::allclose(layer(rows()), plain(rows())), world() == 1);
  layer->eval();
  EXPECT_TRUE(torch::equal(layer(rows()), plain(rows())));
}

TEST_F(TogetherSyncBatchNorm, HalfPrecisionCalculatesInFloat) {
  torch::nn::BatchNorm1d layer(4), joined(4);
  accelerate::convert_sync_batchnorm(state(), *layer);
  auto input = rows().to(torch::kBFloat16).requires_grad_();
  const auto output = layer(input);
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  const auto all = rows_of_all().to(torch::kBFloat16).to(torch::kFloat);
  expect_close({output.to(torch::kFloat)}, {joined(all).narrow(0, 3 * rank(), 3)}, 2e-2);
  output.sum().backward();
  EXPECT_EQ(input.grad().scalar_type(), torch::kBFloat16);
}

}  // namespace
