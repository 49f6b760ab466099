#include <accelerate/launch/machine_facts.h>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(MachineFacts, AllGpusAreVisibleUnlessTheEnvironmentChooses) {
  EXPECT_EQ(count_visible_gpus(4, std::nullopt), 4);
  EXPECT_EQ(count_visible_gpus(4, ""), 0);
  EXPECT_EQ(count_visible_gpus(4, "-1"), 0);
  EXPECT_EQ(count_visible_gpus(4, "NoDevFiles"), 0);
  EXPECT_EQ(count_visible_gpus(4, "2"), 1);
  EXPECT_EQ(count_visible_gpus(4, "3, 0"), 2);
  EXPECT_EQ(count_visible_gpus(4, "GPU-8932f937,MIG-1a2b"), 2);
  EXPECT_EQ(count_visible_gpus(0, "0,1"), 0);
}

TEST(MachineFacts, GpusAfterOneThatDoesNotExistAreHidden) {
  EXPECT_EQ(count_visible_gpus(2, "0,5,1"), 1);
  EXPECT_EQ(count_visible_gpus(2, "0,-1,1"), 1);
}

TEST(MachineFacts, AGpuNamedTwiceHidesAll) { EXPECT_EQ(count_visible_gpus(2, "0,0"), 0); }

TEST(MachineFacts, HardwareThreadsOfOneCoreCountOnce) {
  const char* two_packages_of_one_core_with_two_threads =
      "processor\t: 0\nphysical id\t: 0\ncore id\t\t: 0\n\nprocessor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n\n"
      "processor\t: 2\nphysical id\t: 1\ncore id\t\t: 0\n\nprocessor\t: 3\nphysical id\t: 1\ncore id\t\t: 0\n";
  EXPECT_EQ(count_physical_cores(two_packages_of_one_core_with_two_threads), 2);
}

TEST(MachineFacts, ProcessorsCountWhereCoresAreNotNamed) {
  EXPECT_EQ(count_physical_cores("processor\t: 0\nBogoMIPS\t: 50\n\nprocessor\t: 1\nBogoMIPS\t: 50\n"), 2);
  EXPECT_EQ(count_physical_cores(""), 1);
}

TEST(MachineFacts, ThisMachineHasACoreAndHidesItsGpusWhenTold) {
  PortReservation port;
  EXPECT_GE(read_machine_facts(port).physical_cores, 1);
  EXPECT_EQ(read_machine_facts(port, [](const std::string&) { return std::optional<std::string>("-1"); }).gpus, 0);
}

}  // namespace
}  // namespace accelerate
