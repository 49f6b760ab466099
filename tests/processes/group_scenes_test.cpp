// What users read when something goes wrong in a sub-group, or between two ranks.
#include <gtest/gtest.h>

#include "played_scene.h"

namespace {

using accelerate::testing::Scene;
using accelerate::testing::wait_until;

TEST(GroupScenes, ARankKilledWhileAnotherWaitsForItsTensorIsNamedAtOnce) {
  Scene scene("killed_before_a_send", 3);
  wait_until("rank 0 to hear", [&] { return scene.rank(0).output().find("heard: ") != std::string::npos; });
  scene.leave_file("all have heard");
  EXPECT_EQ(scene.output(0),
            "process 0 heard: recv at group_scenes.cpp:N failed on rank 0 of 3: Rank 2 is dead.\n"
            "  - Rank 0: in recv from rank 2 at group_scenes.cpp:N for T s; its last call was wait_for_everyone (call 1) at "
            "group_scenes.cpp:N\n"
            "  - Rank 1: in user code for T s; its last call was wait_for_everyone (call 1) at group_scenes.cpp:N\n"
            "  - Rank 2: dead, its process P has exited; last seen in wait_for_everyone (call 1) at group_scenes.cpp:N, which "
            "ended T s "
            "ago\n");
  EXPECT_LT(scene.rank(0).wait().seconds, 20) << "not when the time-out is over";
}

TEST(GroupScenes, ARankKilledInAGroupIsNamedByItsNumbersThereAndInTheRun) {
  Scene scene("killed_in_a_group", 3);
  wait_until("rank 1 to hear", [&] { return scene.rank(1).output().find("heard: ") != std::string::npos; });
  scene.leave_file("all have heard");
  EXPECT_EQ(scene.output(0), "process 0 heard nothing\n");
  EXPECT_EQ(
      scene.output(1),
      "process 1 heard: reduce at group_scenes.cpp:N failed on rank 0 of 2 (rank 1 of the run): Rank 1 (rank 2 of the run) is "
      "dead.\n"
      "  - Rank 0 (rank 1 of the run): waiting for T s in reduce of float32[2] (call 1) at group_scenes.cpp:N\n"
      "  - Rank 1 (rank 2 of the run): dead, its process P has exited; it had made no call yet\n");
}

TEST(GroupScenes, ARankKilledBeforeAGroupIsConnectedIsNamedAtOnce) {
  Scene scene("killed_in_a_split", 3);
  for (int rank : {0, 1}) {
    const std::string heard = scene.output(rank);
    EXPECT_NE(
        heard.find("heard: split_group at group_scenes.cpp:N failed on rank " + std::to_string(rank) + " of 3: Rank 2 is dead."),
        std::string::npos)
        << heard;
    EXPECT_LT(scene.rank(rank).wait().seconds, 20) << "not when the time-out is over";
  }
}

TEST(GroupScenes, ARankThatIsMissingInAGroupIsNamedWithWhatItWaitsForElsewhere) {
  Scene scene("late_in_a_group", 3, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.3"}});
  const std::string missing = "Rank 1 (rank 2 of the run) has not reached call 1.";
  wait_until("the warnings", [&] {
    return scene.rank(1).errors().find(missing) != std::string::npos &&
           scene.rank(2).errors().find("recv from rank 0") != std::string::npos;
  });
  scene.leave_file("warned");
  for (int rank : {0, 1, 2}) EXPECT_EQ(scene.output(rank), "process " + std::to_string(rank) + " went on\n");
  EXPECT_EQ(scene.errors(1),
            "accelerate: reduce of float32[2] (call 1) at group_scenes.cpp:N has been waiting for T s. " + missing +
                "\n"
                "  - Rank 0 (rank 1 of the run): waiting for T s in reduce of float32[2] (call 1) at group_scenes.cpp:N\n"
                "  - Rank 1 (rank 2 of the run): in recv from rank 0 at group_scenes.cpp:N for T s; it has made no call yet\n"
                "accelerate: reduce of float32[2] (call 1) at group_scenes.cpp:N resumed after T s.\n");
  EXPECT_EQ(
      scene.errors(2),
      "accelerate: recv from rank 0 at group_scenes.cpp:N has been waiting for T s. No rank is in a collective of the group.\n"
      "  - Rank 0: in user code for T s; its last call was split_group (call 3) at group_scenes.cpp:N\n"
      "  - Rank 1: in reduce in another group at group_scenes.cpp:N for T s; its last call was split_group (call 3) at "
      "group_scenes.cpp:N\n"
      "  - Rank 2: in recv from rank 0 at group_scenes.cpp:N for T s; its last call was split_group (call 3) at "
      "group_scenes.cpp:N\n"
      "accelerate: recv from rank 0 at group_scenes.cpp:N resumed after T s.\n");
}

TEST(GroupScenes, RanksThatWaitForEachOtherInDifferentGroupsAreToldApart) {
  Scene scene("groups_deadlock", 2, {{"ACCELERATE_HANG_WARNING_SECONDS", "0.3"}});
  for (int rank : {0, 1}) {
    const std::string other = std::to_string(1 - rank);
    wait_until("the warning", [&] {
      return scene.errors_so_far(rank).find("  - Rank " + other + ": in reduce in another group at group_scenes.cpp:N for T s") !=
             std::string::npos;
    });
    EXPECT_NE(scene.errors_so_far(rank).find("Rank " + other + " has not reached call 1."), std::string::npos);
  }
  for (int rank : {0, 1}) scene.rank(rank).signal(SIGKILL);
}

TEST(GroupScenes, ASendThatNobodyReceivesEndsAtTheTimeout) {
  Scene scene("nobody_receives", 2);
  const std::string heard = scene.output(0);
  EXPECT_NE(
      heard.find("process 0 heard: send at group_scenes.cpp:N failed on rank 0 of 2: No rank is in a collective of the group.\n"
                 "  - Rank 0: in send to rank 1 at group_scenes.cpp:N for T s; its last call was wait_for_everyone (call 1)"),
      std::string::npos)
      << heard;
}

}  // namespace
