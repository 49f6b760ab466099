// What users read when something goes wrong while a model is sharded.
#include <gtest/gtest.h>

#include "played_scene.h"

namespace {

using accelerate::testing::Scene;

TEST(ShardedScenes, ARankKilledInAPassIsNamedByAllOthers) {
  for (const std::string pass : {"forward", "backward"}) {
    Scene scene("killed_in_a_sharded_" + pass, 3);
    for (const int rank : {0, 1}) {
      const std::string heard = scene.output(rank);
      EXPECT_NE(heard.find(" failed on rank " + std::to_string(rank) + " of 3: Rank 2 is dead."), std::string::npos) << heard;
      EXPECT_NE(heard.find("] for "), std::string::npos) << "which unit: " << heard;
      EXPECT_LT(scene.rank(rank).wait().seconds, 20) << "not when the time-out is over";
    }
  }
}

TEST(ShardedScenes, ARankThatAloneReadsAWeightIsAMismatchThatNamesBothCalls) {
  Scene scene("one_rank_reads_a_sharded_weight", 2);
  for (const int rank : {0, 1}) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(heard.find("all_gather of float32"), std::string::npos) << heard;
    EXPECT_NE(heard.find("wait_for_everyone"), std::string::npos) << heard;
  }
}

}  // namespace
