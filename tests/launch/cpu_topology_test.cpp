#include <accelerate/launch/cpu_topology.h>

#include <gtest/gtest.h>

#include <accelerate/launch/machine_facts.h>
#include <fstream>

#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

void write_topology_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

/// Two nodes of four CPUs with a GPU each, the first GPU near the second node, and one GPU of which nothing is known.
void write_two_nodes(const TemporaryFolder& root) {
  write_topology_file(root / "sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  write_topology_file(root / "sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  write_topology_file(root / "sys/devices/system/node/possible", "0-1\n");
  write_topology_file(root / "sys/bus/pci/devices/0000:17:00.0/numa_node", "1\n");
  write_topology_file(root / "sys/bus/pci/devices/0000:65:00.0/numa_node", "0\n");
  for (const char* gpu : {"0000:65:00.0", "0000:17:00.0", "0000:99:00.0"}) {
    std::filesystem::create_directories(root / ("proc/driver/nvidia/gpus/" + std::string(gpu)));
  }
}

const std::set<int> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(CpuTopology, NodesAndGpusAreReadInTheOrderOfTheirNumbers) {
  const TemporaryFolder root;
  write_two_nodes(root);
  const CpuTopology topology = read_cpu_topology(root.name(), kAll);
  EXPECT_EQ(topology.nodes, (std::map<int, std::vector<int>>{{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}}));
  EXPECT_EQ(topology.gpu_nodes, (std::vector<int>{1, 0, -1}));
}

TEST(CpuTopology, CpusThatMayNotBeUsedAreLeftOut) {
  const TemporaryFolder root;
  write_two_nodes(root);
  EXPECT_EQ(read_cpu_topology(root.name(), {1, 2, 4}).nodes, (std::map<int, std::vector<int>>{{0, {1, 4}}, {1, {2}}}));
}

TEST(CpuTopology, WithoutNodesAllCpusAreOneNode) {
  const TemporaryFolder root;
  EXPECT_EQ(read_cpu_topology(root.name(), {0, 2}).nodes, (std::map<int, std::vector<int>>{{0, {0, 2}}}));
  EXPECT_TRUE(read_cpu_topology(root.name(), {}).nodes.empty());
}

TEST(CpuTopology, NonsenseInFilesCountsForNothing) {
  const TemporaryFolder root;
  write_topology_file(root / "sys/devices/system/node/node0/cpulist", "x,3-,-2,9-1,0,1-99999999999\n");
  write_topology_file(root / "sys/devices/system/node/nodes/cpulist", "0\n");
  write_topology_file(root / "sys/bus/pci/devices/0000:17:00.0/numa_node", "near\n");
  std::filesystem::create_directories(root / "proc/driver/nvidia/gpus/0000:17:00.0");
  const CpuTopology topology = read_cpu_topology(root.name(), kAll);
  EXPECT_EQ(topology.nodes, (std::map<int, std::vector<int>>{{0, {0}}}));
  EXPECT_EQ(topology.gpu_nodes, (std::vector<int>{-1}));
}

TEST(CpuTopology, AProcessIsKeptOnTheNodeOfItsGpu) {
  const CpuTopology topology = {.nodes = {{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}}, .gpu_nodes = {1, 0, -1}};
  EXPECT_EQ(cpus_for(topology, 0, 2, 0), (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(cpus_for(topology, 1, 2, 1), (std::vector<int>{0, 1, 4, 5}));
}

TEST(CpuTopology, OnTheCpuAndNearUnknownGpusProcessesShareTheCpusEvenlyNodeByNode) {
  const CpuTopology topology = {.nodes = {{0, {0, 1, 4, 5}}, {1, {2, 3, 6, 7}}}, .gpu_nodes = {1, 0, -1}};
  for (const std::optional<int> gpu : {std::optional<int>(), std::optional(2), std::optional(7)}) {
    EXPECT_EQ(cpus_for(topology, 0, 2, gpu), (std::vector<int>{0, 1, 4, 5}));
    EXPECT_EQ(cpus_for(topology, 1, 2, gpu), (std::vector<int>{2, 3, 6, 7}));
  }
  EXPECT_EQ(cpus_for(topology, 2, 3, std::nullopt), (std::vector<int>{3, 6, 7}));
}

TEST(CpuTopology, MoreProcessesThanCpusHaveOneEach) {
  const CpuTopology topology = {.nodes = {{0, {0, 1}}}};
  for (int rank = 0; rank < 5; ++rank) EXPECT_EQ(cpus_for(topology, rank, 5, std::nullopt).size(), 1u) << rank;
  EXPECT_TRUE(cpus_for({}, 0, 1, std::nullopt).empty());
}

TEST(CpuTopology, ListsAreWrittenAsTheKernelDoes) {
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(cpu_list_text({5}), "5");
  EXPECT_EQ(cpu_list_text({}), "");
}

TEST(MachineFacts, SeveralGpusOfTheRtx40SeriesWithAnOldDriverDoNotTalkToEachOther) {
  const auto machine = [](const char* model, const char* driver, int gpus, const TemporaryFolder& root) {
    write_topology_file(root / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " +
                                                                 std::string(driver) + "  Tue Jan 2\nGCC version:  gcc 12.2.0\n");
    for (int i = 0; i < gpus; ++i) {
      write_topology_file(root / ("proc/driver/nvidia/gpus/0000:0" + std::to_string(i) + ":00.0/information"),
                          "Model: \t\t " + std::string(model) + "\n");
    }
    return has_broken_peer_access(root.name());
  };
  EXPECT_TRUE(machine("NVIDIA GeForce RTX 4090", "535.161.08", 2, TemporaryFolder()));
  EXPECT_TRUE(machine("NVIDIA GeForce RTX 4090", "550.40.06", 2, TemporaryFolder()));
  EXPECT_FALSE(machine("NVIDIA GeForce RTX 4090", "550.40.07", 2, TemporaryFolder()));
  EXPECT_FALSE(machine("NVIDIA GeForce RTX 4090", "535.161.08", 1, TemporaryFolder()));
  EXPECT_FALSE(machine("NVIDIA H200", "535.161.08", 2, TemporaryFolder()));
  EXPECT_FALSE(has_broken_peer_access(TemporaryFolder().name()));
}

}  // namespace
}  // namespace accelerate::testing
