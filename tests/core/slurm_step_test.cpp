#include "core/slurm_step.h"

#include <gtest/gtest.h>

#include <accelerate/core/error.h>

#include <map>

#include "support/error_text.h"

namespace {

using namespace accelerate::detail;
using Hosts = std::vector<std::string>;

TEST(SlurmStep, AHostListIsExpandedInItsOrder) {
  const std::vector<std::pair<std::string, Hosts>> lists = {
      {"login", {"login"}},
      {"gpu[08-10,12],login[1-2]x", {"gpu08", "gpu09", "gpu10", "gpu12", "login1x", "login2x"}},
      {"gpu[8-10]", {"gpu8", "gpu9", "gpu10"}},
      {"gpu[098-101]", {"gpu098", "gpu099", "gpu100", "gpu101"}},
      {"rack[1-2]node[0,3]", {"rack1node0", "rack1node3", "rack2node0", "rack2node3"}},
      {"a-b.example.org,c7", {"a-b.example.org", "c7"}},
  };
  for (const auto& [list, hosts] : lists) EXPECT_EQ(expand_host_list(list), hosts) << list;
}

TEST(SlurmStep, WhatIsNoHostListIsRefused) {
  for (const std::string list : {"", ",", "a,,b", "a[", "a]", "a[]", "a[1-]", "a[2-1]", "a[x]", "a[1-2", "a]1[", "a[1-99999999]",
                                 "a[0-999]b[0-999]", "a[18446744073709551616]", "a[-1]"})
    EXPECT_EQ(expand_host_list(list), std::nullopt) << list;
}

TEST(SlurmStep, AListThatCannotBeReadIsNamed) {
  const auto told = [](const std::string& list) {
    return accelerate::testing::message_of<accelerate::ConfigError>([&] {
      read_slurm_step([&](const std::string& name) -> std::optional<std::string> {
        if (name == "SLURM_STEP_NUM_TASKS") return "2";
        return name == "SLURM_STEP_NODELIST" ? std::optional(list) : std::nullopt;
      });
    });
  };
  EXPECT_NE(told("gpu[1-").find("SLURM_STEP_NODELIST=gpu[1-: expected a list of hosts"), std::string::npos);
}

// As Slurm 22.05 sets them.
TEST(SlurmStep, WhatIsLeftOfAnotherStepIsNone) {
  const auto is_step = [](const std::map<std::string, std::string>& table) {
    return read_slurm_step([&](const std::string& name) -> std::optional<std::string> {
             const auto found = table.find(name);
             return found == table.end() ? std::nullopt : std::optional(found->second);
           })
        .has_value();
  };
  std::map<std::string, std::string> table = {{"SLURM_JOB_ID", "9"},
                                              {"SLURM_PROCID", "0"},
                                              {"SLURM_NNODES", "1"},
                                              {"SLURM_TASKS_PER_NODE", "1"},
                                              {"SLURM_STEP_NODELIST", "node1"},
                                              {"SLURM_STEP_NUM_NODES", "1"},
                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "1"}};
  EXPECT_TRUE(is_step(table));
  table["SLURM_STEP_NUM_TASKS"] = "4";
  table["SLURM_STEP_TASKS_PER_NODE"] = "4";
  EXPECT_FALSE(is_step(table)) << "a batch script that was submitted by a task of a step";
  table["SLURM_STEP_NUM_NODES"] = "2";
  table["SLURM_STEP_TASKS_PER_NODE"] = "1";
  EXPECT_FALSE(is_step(table));
}

}  // namespace
