#include "checkpoint/host_copies.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace accelerate {

using namespace detail;
namespace {

TEST(HostCopies, HoldTheValuesOfTheMomentOfFinishAlsoOfTensorsThatAreGoneByThen) {
  const auto weights = torch::randn({3000, 1000}).requires_grad_();
  const auto columns = weights.detach().t(), part = columns.slice(0, 5, 900),
             image = torch::randn({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast);
  const auto conjugated = torch::randn({7}, torch::kComplexFloat).conj();
  HostCopies copies;
  copies.begin();
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& tensor :
       {weights.detach(), columns, part, image, conjugated, torch::tensor(3), torch::empty({0, 4}, torch::kHalf)}) {
    pairs.emplace_back(tensor.clone(), copies.add(tensor));
  }
  const auto of_weights = copies.add(weights);
  EXPECT_FALSE(copies.add(at::Tensor()).defined());
  copies.finish();
  weights.detach().zero_();
  for (const auto& [before, copy] : pairs) {
    EXPECT_EQ(copy.scalar_type(), before.scalar_type());
    EXPECT_TRUE(torch::equal(copy, before)) << before.sizes();
  }
  EXPECT_TRUE(torch::equal(of_weights, pairs[0].first));
  EXPECT_FALSE(of_weights.requires_grad());
  EXPECT_EQ(pairs[1].second.strides(), columns.strides());
}

TEST(HostCopies, MemoryIsUsedAgainOnceItsCopiesAreGoneAndNotBefore) {
  const auto first = torch::full({1000}, 1.0), second = torch::full({1000}, 2.0);
  HostCopies copies;
  copies.begin();
  auto held = copies.add(first);
  copies.finish();
  copies.begin();
  auto next = copies.add(second);
  copies.finish();
  EXPECT_TRUE(torch::equal(held, first)) << "overwritten while it was still there";
  const void* memory = next.const_data_ptr();
  next.reset();
  copies.begin();
  EXPECT_EQ(copies.add(second).const_data_ptr(), memory);
  copies.finish();
}

TEST(HostCopies, WhatWasAddedToASaveThatFailedIsForgotten) {
  HostCopies copies;
  copies.begin();
  const auto lost = copies.add(torch::full({1000}, 1.0));  // whose tensor is gone by now
  copies.begin();
  const auto kept = torch::full({1000}, 2.0);
  const auto copy = copies.add(kept);
  copies.finish();
  EXPECT_TRUE(torch::equal(copy, kept));
}

}  // namespace
}  // namespace accelerate
