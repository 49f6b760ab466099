#include <accelerate/core/error.h>
#include <accelerate/data/collate.h>
#include <accelerate/data/data_loader.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/error_text.h"

namespace {

using accelerate::default_collate;
using accelerate::testing::message_of;

struct CollatedWord {
  at::Tensor letters;
  std::vector<at::Tensor> parts;
  std::map<std::string, at::Tensor> named;
  std::optional<at::Tensor> more;
};
struct CollatedTree {
  at::Tensor value;
  std::vector<CollatedTree> children;
};
struct WithNumber {
  at::Tensor data;
  int label;
};
class Opaque {};

static_assert(accelerate::Collatable<CollatedWord> && accelerate::Collatable<CollatedTree>);
static_assert(accelerate::Collatable<std::tuple<at::Tensor, int, std::string>>);
static_assert(!accelerate::Collatable<WithNumber> && !accelerate::Collatable<Opaque> &&
              !accelerate::Collatable<std::vector<Opaque>>);
static_assert(accelerate::detail::sendable<CollatedTree>() && accelerate::detail::sendable<WithNumber>());
static_assert(!accelerate::detail::sendable<std::pair<int, std::shared_ptr<int>>>());

struct RaggedWords {
  size_t size() const { return 20; }
  std::pair<at::Tensor, at::Tensor> get(size_t i) const { return {torch::zeros({2}), torch::zeros({i == 17 ? 5 : 3})}; }
};

}  // namespace

TEST(Collate, TensorsAreStacked) {
  EXPECT_TRUE(default_collate(std::vector{torch::tensor({1, 2}), torch::tensor({3, 4})}).equal(torch::tensor({{1, 2}, {3, 4}})));
}

TEST(Collate, NumbersBecomeTensors) {
  EXPECT_TRUE(default_collate(std::vector<int>{1, 2}).equal(torch::tensor({1, 2}, torch::kLong)));
  EXPECT_TRUE(default_collate(std::vector<uint8_t>{1, 2}).equal(torch::tensor({1, 2}, torch::kLong)));
  EXPECT_EQ(default_collate(std::vector<float>{0.5f}).scalar_type(), torch::kFloat);
  EXPECT_EQ(default_collate(std::vector<double>{0.5}).scalar_type(), torch::kDouble);
  EXPECT_TRUE(default_collate(std::vector<bool>{true, false}).equal(torch::tensor({true, false})));
}

TEST(Collate, StructsTuplesMapsAndListsKeepTheirShape) {
  const auto word = [](float x) {
    return CollatedWord{
        torch::full({2}, x), {torch::full({}, x), torch::full({1}, -x)}, {{"a", torch::full({}, x)}}, torch::full({}, x)};
  };
  const CollatedWord words = default_collate(std::vector{word(1), word(2), word(3)});
  EXPECT_EQ(words.letters.sizes(), (std::vector<int64_t>{3, 2}));
  EXPECT_TRUE(words.parts[0].equal(torch::tensor({1.f, 2.f, 3.f})));
  EXPECT_TRUE(words.parts[1].equal(torch::tensor({{-1.f}, {-2.f}, {-3.f}})));
  EXPECT_TRUE(words.named.at("a").equal(torch::tensor({1.f, 2.f, 3.f})));
  EXPECT_TRUE(words.more->equal(torch::tensor({1.f, 2.f, 3.f})));

  using Row = std::tuple<at::Tensor, int, std::string, std::pair<double, bool>>;
  const std::tuple<at::Tensor, at::Tensor, std::vector<std::string>, std::pair<at::Tensor, at::Tensor>> rows =
      default_collate(std::vector<Row>{{torch::zeros({2}), 4, "x", {0.5, true}}, {torch::ones({2}), 5, "y", {1.5, false}}});
  EXPECT_EQ(std::get<0>(rows).sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(std::get<1>(rows).equal(torch::tensor({4, 5}, torch::kLong)));
  EXPECT_EQ(std::get<2>(rows), (std::vector<std::string>{"x", "y"}));
  EXPECT_TRUE(std::get<3>(rows).second.equal(torch::tensor({true, false})));

  const std::vector<at::Tensor> lists = default_collate(std::vector<std::vector<int>>{{1, 2}, {3, 4}, {5, 6}});
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_TRUE(lists[1].equal(torch::tensor({2, 4, 6}, torch::kLong)));
  const std::array<at::Tensor, 2> arrays = default_collate(std::vector<std::array<bool, 2>>{{true, false}});
  EXPECT_TRUE(arrays[0].equal(torch::tensor({true})));
  const std::map<std::string, at::Tensor> maps = default_collate(std::vector<std::map<std::string, int>>{{{"k", 1}}, {{"k", 2}}});
  EXPECT_TRUE(maps.at("k").equal(torch::tensor({1, 2}, torch::kLong)));
}

TEST(Collate, WhatDoesNotFitTogetherIsAnErrorThatNamesIt) {
  const auto ragged = message_of<accelerate::UsageError>([] {
    default_collate(std::vector{torch::zeros({3}), torch::zeros({3}), torch::zeros({4})});
  });
  EXPECT_NE(ragged.find("[3]"), std::string::npos) << ragged;
  EXPECT_NE(ragged.find("[4]"), std::string::npos) << ragged;
  EXPECT_NE(message_of<accelerate::UsageError>([] {
              default_collate(std::vector<std::vector<int>>{{1}, {1, 2}});
            }).find("1 and 2 elements"),
            std::string::npos);
  EXPECT_NE(message_of<accelerate::UsageError>([] {
              default_collate(std::vector<std::map<int, int>>{{{1, 1}}, {{2, 1}}});
            }).find("keys"),
            std::string::npos);
  EXPECT_NE(message_of<accelerate::UsageError>([] {
              default_collate(std::vector<std::vector<at::Tensor>>{{torch::ones({})}, {torch::ones({}), torch::ones({})}});
            }).find("[tt]"),
            std::string::npos);
}

template <class T>
void expect_no_batch_of_nothing() {
  EXPECT_NE(message_of<accelerate::UsageError>([] { default_collate(std::vector<T>()); }).find("an empty batch"),
            std::string::npos)
      << typeid(T).name();
}

TEST(Collate, OfNoSamplesThereIsNoBatch) {
  expect_no_batch_of_nothing<at::Tensor>();
  expect_no_batch_of_nothing<int>();
  expect_no_batch_of_nothing<std::string>();
  expect_no_batch_of_nothing<std::tuple<int, at::Tensor>>();
  expect_no_batch_of_nothing<std::vector<float>>();
  expect_no_batch_of_nothing<std::map<std::string, int>>();
}

TEST(Collate, ALoaderNamesTheSamplesThatDoNotFitTogether) {
  const auto error = message_of<accelerate::UsageError>([] {
    for (auto& batch : accelerate::DataLoader(RaggedWords{}, {.batch_size = 5})) static_cast<void>(batch);
  });
  EXPECT_NE(error.find("sample 15 and sample 17"), std::string::npos) << error;
  EXPECT_NE(error.find("tensor 2 of 2"), std::string::npos) << error;
  EXPECT_NE(error.find("collate function"), std::string::npos) << error;
}
