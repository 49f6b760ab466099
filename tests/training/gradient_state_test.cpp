#include <accelerate/core/error.h>
#include <accelerate/training/gradient_state.h>
#include <gtest/gtest.h>

#include <vector>

using accelerate::GradientState;

TEST(GradientState, TheLastBatchOfALoaderEndsAnAccumulation) {
  for (const bool sync_with_dataloader : {true, false}) {
    bool last = false;
    GradientState state(2, {.sync_with_dataloader = sync_with_dataloader}, [&] { return last; });
    std::vector<bool> syncs;
    for (int batch = 0; batch < 8; ++batch) {
      last = batch % 3 == 2;
      const bool expected = state.would_sync();
      syncs.push_back(state.count_batch());
      EXPECT_EQ(syncs.back(), expected);
      EXPECT_EQ(state.sync_gradients(), expected);
      EXPECT_EQ(state.step(), sync_with_dataloader ? (batch + 1) % 3 : batch + 1);
    }
    EXPECT_EQ(syncs, sync_with_dataloader ? std::vector<bool>({false, true, true, false, true, true, false, true})
                                          : std::vector<bool>({false, true, false, true, false, true, false, true}));
    EXPECT_EQ(state.counted(), 8);
  }
}

TEST(GradientState, WithoutALoaderEveryNthBatchSyncs) {
  GradientState state(3);
  std::vector<bool> syncs;
  for (int batch = 0; batch < 7; ++batch) syncs.push_back(state.count_batch());
  EXPECT_EQ(syncs, std::vector<bool>({false, false, true, false, false, true, false}));
  EXPECT_TRUE(state.would_sync(1));
  EXPECT_THROW(state.set_num_steps(0), accelerate::UsageError);
  EXPECT_EQ(state.num_steps(), 3);
}
