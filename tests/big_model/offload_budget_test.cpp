#include "big_model/offload_budget.h"

#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "big_model/towers.h"
#include "support/error_text.h"

using accelerate::detail::offload_budget_of;
using accelerate::detail::OffloadNeeds;
using accelerate::testing::message_of;

namespace {

TEST(OffloadBudget, IsWhatWasGivenElseWhatIsLeftElseThreeLayers) {
  EXPECT_EQ(offload_budget_of({.largest = 10}), 30u);
  EXPECT_EQ(offload_budget_of({.limit = 100, .resident = 40, .largest = 10}), 60u);
  EXPECT_EQ(offload_budget_of({.budget = 12, .limit = 100, .resident = 40, .largest = 10}), 12u);
}

TEST(OffloadBudget, TheCpuTakesWhatTheLargestLayerNeeds) {
  EXPECT_EQ(offload_budget_of({.limit = 10, .resident = 40, .largest = 10}), 10u);
  EXPECT_EQ(offload_budget_of({.budget = 1, .largest = 10}), 10u);
}

std::string budget_refusal(const OffloadNeeds& needs) {
  return message_of<accelerate::UsageError>([&] { offload_budget_of(needs); });
}

TEST(OffloadBudget, AnAcceleratorThatIsTooSmallIsAnErrorThatSaysHowMuchIsNeeded) {
  const c10::Device gpu("cuda:1");
  const auto by_limit =
      budget_refusal({.device = gpu, .limit = 5000, .resident = 4200, .largest = 900, .largest_name = "blocks.3.up"});
  for (const char* word : {"cuda:1", "blocks.3.up", "900 bytes", "800 bytes", "5000", "4200", "max_memory"})
    EXPECT_NE(by_limit.find(word), std::string::npos) << word << " is not in: " << by_limit;
  const auto by_budget = budget_refusal({.device = gpu, .budget = 700, .largest = 900, .largest_name = "head"});
  for (const char* word : {"cuda:1", "head", "900 bytes", "700 bytes", "offload_budget"})
    EXPECT_NE(by_budget.find(word), std::string::npos) << word << " is not in: " << by_budget;
  EXPECT_EQ(budget_refusal({.device = gpu, .limit = 5000, .resident = 4100, .largest = 900}), "no error");
}

}  // namespace
