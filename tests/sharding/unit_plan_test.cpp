#include "sharding/unit_plan.h"

#include "sharding/flat_layout.h"
#include "sharding/sharded_nets.h"
#include "support/error_text.h"

namespace {

using namespace sharded_nets;
using accelerate::FsdpOptions;
using accelerate::detail::FlatLayout;
using accelerate::detail::plan_units;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

TEST(FlatLayout, EveryElementIsInExactlyOneShard) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const FlatLayout layout({1, 31, 32, 33, 0, 5, 1000}, ranks);
    int64_t covered = 0;
    for (size_t weight = 0; weight < layout.weights(); ++weight) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto piece = layout.piece(weight, rank);
        if (piece.length == 0) continue;
        EXPECT_EQ(piece.begin, next);
        EXPECT_EQ(rank * layout.shard_size() + piece.offset, layout.offset(weight) + piece.begin);
        EXPECT_LE(piece.offset + piece.length, layout.shard_size());
        next += piece.length;
      }
      EXPECT_EQ(next, layout.size(weight));
      EXPECT_EQ(layout.offset(weight) % FlatLayout::kAlignment, 0);
      covered += next;
    }
    int64_t gaps = 0;
    for (const auto& gap : layout.gaps()) gaps += gap.length;
    EXPECT_EQ(covered + gaps, layout.total());
  }
}

std::vector<std::string> units_of(const FsdpOptions& options) {
  const TinyGpt net;
  std::vector<std::string> names;
  for (const auto& unit : plan_units(*net, options).units) names.push_back(unit.name + " " + std::to_string(unit.weights.size()));
  return names;
}

TEST(UnitPlan, LayersAreUnitsAndSoIsWhatLiesBetweenThem) {
  EXPECT_EQ(units_of(by_block()),
            (std::vector<std::string>{"embedding.weight 1", "blocks.0 9", "blocks.1 9", "blocks.2 9", "norm.weight 2"}));
  EXPECT_EQ(units_of({}), (std::vector<std::string>{"embedding.weight 30"}));
}

TEST(UnitPlan, ModulesOfEnoughParametersAreUnitsAndContainersAreNot) {
  // A block has 1,512 parameters; qkv alone 432, up and down 312 and 300.
  EXPECT_EQ(units_of({.min_num_params = 1000}),
            (std::vector<std::string>{"embedding.weight 1", "blocks.0 9", "blocks.1 9", "blocks.2 9", "norm.weight 2"}));
  EXPECT_EQ(units_of({.min_num_params = 1'000'000}), (std::vector<std::string>{"embedding.weight 30"}));
}

TEST(UnitPlan, IgnoredModulesStayWhole) {
  const TinyGpt net;
  const auto plan = plan_units(*net, by_block({.ignored_modules = {"blocks\\.[01]"}}));
  EXPECT_EQ(plan.whole.size(), 18U);
  EXPECT_EQ(plan.units.size(), 3U);
  expect_parts(message_of<accelerate::UsageError>([&] { plan_units(*net, by_block({.ignored_modules = {"block"}})); }),
               {"'block'"});
  expect_parts(message_of<accelerate::UsageError>([&] { plan_units(*net, by_block({.ignored_modules = {"("}})); }),
               {"regular expression"});
}

}  // namespace
