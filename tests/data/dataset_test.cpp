#include <accelerate/core/error.h>
#include <accelerate/data/data_loader.h>
#include <accelerate/data/tensor_dataset.h>
#include <accelerate/data/torch_dataset.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <list>

#include "data/collect.h"

namespace {

using accelerate::Indices;
using collected::batches_of;
using collected::Lists;

struct SquaresOfDataset {
  std::optional<size_t> size() const { return 5; }
  at::Tensor get(size_t i) { return torch::full({}, static_cast<int64_t>(i * i)); }
};
struct SpanDataset {
  int size() const { return 4; }
  at::Tensor get_batch(std::span<const int64_t> indices) const {
    return torch::tensor(std::vector<int64_t>(indices.begin(), indices.end())) * 10;
  }
};
struct CountdownStream {
  std::vector<double> numbers = {3, 2, 1};
  auto begin() const { return numbers.begin(); }
  auto end() const { return numbers.end(); }
};

struct TorchSquares : torch::data::datasets::Dataset<TorchSquares> {
  torch::data::Example<> get(size_t i) override {
    const auto number = static_cast<int64_t>(i);
    return {torch::full({2}, number), torch::full({}, number * number)};
  }
  std::optional<size_t> size() const override { return 6; }
};
struct TorchTensors : torch::data::datasets::Dataset<TorchTensors, torch::data::TensorExample> {
  torch::data::TensorExample get(size_t i) override { return torch::full({2}, static_cast<int64_t>(i)); }
  std::optional<size_t> size() const override { return 3; }
};

static_assert(accelerate::MapDataset<accelerate::TensorDataset>);
static_assert(accelerate::MapDataset<SquaresOfDataset> && accelerate::MapDataset<SpanDataset>);
static_assert(accelerate::MapDataset<std::vector<at::Tensor>>);
static_assert(accelerate::IterableDataset<std::list<at::Tensor>> && accelerate::IterableDataset<const CountdownStream>);
static_assert(!accelerate::MapDataset<int> && !accelerate::IterableDataset<int>);

}  // namespace

TEST(TensorDataset, GivesTheRowsOfBothTensors) {
  const accelerate::TensorDataset dataset(torch::arange(12).view({6, 2}), torch::arange(6));
  EXPECT_EQ(dataset.size(), 6u);
  EXPECT_TRUE(dataset.get(4).data.equal(torch::tensor({8, 9})));
  const auto scattered = dataset.get_batch({5, 0, 0});
  EXPECT_TRUE(scattered.data.equal(torch::tensor({{10, 11}, {0, 1}, {0, 1}})));
  EXPECT_TRUE(scattered.target.equal(torch::tensor({5, 0, 0})));
  EXPECT_TRUE(dataset.get_batch({2, 3}).target.equal(torch::tensor({2, 3})));
}

TEST(TensorDataset, WhatIsReadCanBeChangedWithoutChangingTheDataset) {
  const auto data = torch::zeros({6, 2});
  const accelerate::TensorDataset dataset(data, torch::zeros({6}));
  dataset.get(1).data.fill_(1);
  dataset.get_batch({2, 3, 4}).data.fill_(1);
  dataset.get_batch({0}).data.fill_(1);
  dataset.get_batch({5, 1}).data.fill_(1);
  EXPECT_EQ(data.abs().sum().item<double>(), 0);
}

TEST(TensorDataset, RowsOfEveryKindOfTensorComeAsIndexSelectGivesThem) {
  const auto base = torch::arange(48).view({6, 8});
  const std::vector<at::Tensor> kinds = {base,
                                         base.to(torch::kHalf),
                                         base.t().contiguous().t(),
                                         base.slice(1, 0, 8, 2),
                                         base.to(torch::kBool),
                                         base.view({6, 2, 4}),
                                         base.select(1, 0),
                                         torch::empty({6, 0}),
                                         base.select(1, 1).unsqueeze(1).expand({6, 3})};
  for (const auto& tensor : kinds) {
    const auto dataset = accelerate::make_tensor_dataset(tensor);
    for (const Indices& indices : {Indices{3, 1, 5, 5}, Indices{1, 2, 3}, Indices{}}) {
      const at::Tensor expected = tensor.index_select(0, torch::tensor(indices, torch::kLong));
      const auto [rows] = dataset.get_batch(indices);
      EXPECT_TRUE(rows.equal(expected)) << tensor.sizes() << tensor.strides();
      EXPECT_EQ(rows.scalar_type(), expected.scalar_type());
      EXPECT_EQ(rows.sizes(), expected.sizes());
    }
  }
}

TEST(TensorDataset, GradientsOfRowsReachTheTensorAlsoWhenTheBatchIsGone) {
  auto weights = torch::zeros({10, 4}, torch::requires_grad());
  const auto dataset = accelerate::make_tensor_dataset(weights, torch::arange(10));
  at::Tensor loss = torch::zeros({});
  for (auto& [rows, positions] : accelerate::DataLoader(dataset, {.batch_size = 3, .shuffle = true})) {
    loss = loss + (rows * positions.unsqueeze(1)).sum();
  }
  loss.backward();
  EXPECT_TRUE(weights.grad().equal(torch::arange(10, torch::kFloat).unsqueeze(1).expand({10, 4})));
}

TEST(TensorDataset, TensorsOfOtherLengthsAndRowsThatAreNotThereAreErrors) {
  EXPECT_THROW(accelerate::TensorDataset(torch::zeros({3}), torch::zeros({4})), accelerate::UsageError);
  EXPECT_THROW(accelerate::TensorDataset(torch::zeros({}), torch::zeros({})), accelerate::UsageError);
  const accelerate::TensorDataset dataset(torch::zeros({3}), torch::zeros({3}));
  EXPECT_THROW(dataset.get(3), accelerate::UsageError);
  EXPECT_THROW(dataset.get_batch({0, 3}), accelerate::UsageError);
  EXPECT_THROW(dataset.get_batch({2, 3}), accelerate::UsageError);
  EXPECT_THROW(dataset.get_batch({-1}), accelerate::UsageError);
}

TEST(TensorDataset, AnyNumberOfTensorsMakeTuples) {
  accelerate::DataLoader loader(accelerate::make_tensor_dataset(torch::arange(4), torch::arange(4) * 2, torch::arange(4) * 3),
                                {.batch_size = 2});
  int64_t batches = 0;
  for (auto& [a, b, c] : loader) {
    EXPECT_TRUE(b.equal(a * 2) && c.equal(a * 3));
    ++batches;
  }
  EXPECT_EQ(batches, 2);
}

TEST(Dataset, EveryWayToGiveSamplesIsRead) {
  EXPECT_EQ(batches_of(accelerate::DataLoader(SquaresOfDataset{}, {.batch_size = 3})), (Lists{{0, 1, 4}, {9, 16}}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(std::make_shared<SquaresOfDataset>(), {.batch_size = 4})),
            (Lists{{0, 1, 4, 9}, {16}}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(SpanDataset{}, {.batch_size = 2})), (Lists{{0, 10}, {20, 30}}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(std::vector<int64_t>{7, 8, 9}, {.batch_size = 2})), (Lists{{7, 8}, {9}}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(CountdownStream{}, {.batch_size = 2})), (Lists{{3, 2}, {1}}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(std::list<int>{4, 5}, {.batch_size = 2})), (Lists{{4, 5}}));
}

TEST(Dataset, OneThatIsAbsentIsAnError) {
  EXPECT_THROW(accelerate::DataLoader(std::shared_ptr<SquaresOfDataset>()), accelerate::UsageError);
}

TEST(TorchDataset, ExamplesBecomeOurs) {
  accelerate::DataLoader loader(accelerate::torch_dataset(TorchSquares()), {.batch_size = 4});
  EXPECT_EQ(loader.size(), 2);
  std::vector<int64_t> sizes;
  for (auto& [data, target] : loader) {
    EXPECT_TRUE(target.equal(data.select(1, 0).square()));
    sizes.push_back(data.size(0));
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(batches_of(accelerate::DataLoader(accelerate::torch_dataset(TorchTensors()), {.batch_size = 2})),
            (Lists{{0, 0, 1, 1}, {2, 2}}));
}

TEST(TorchDataset, TransformedOnesAreReadWhetherTheyStackOrNot) {
  auto doubled = TorchSquares().map(torch::data::transforms::TensorLambda<>([](at::Tensor data) { return data * 2; }));
  int64_t batches = 0;
  for (auto& [data, target] : accelerate::DataLoader(accelerate::torch_dataset(doubled), {.batch_size = 3})) {
    EXPECT_TRUE((target * 4).equal(data.select(1, 0).square()));
    ++batches;
  }
  auto stacked = TorchSquares().map(torch::data::transforms::Stack<>());
  for (auto& [data, target] : accelerate::DataLoader(accelerate::torch_dataset(stacked), {.batch_size = 3})) {
    EXPECT_TRUE(target.equal(data.select(1, 0).square()));
    ++batches;
  }
  EXPECT_EQ(batches, 4);
}
