#include "hosts/host_file.h"

#include <gtest/gtest.h>

#include <accelerate/core/error.h>

#include "support/error_text.h"

namespace accelerate::testing {

using namespace detail;
namespace {

std::string shown(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) {
    text += host.login + ":";
    for (const int slot : host.used) text += " " + std::to_string(slot);
    text += "\n";
  }
  return text;
}

const char* const kThree = "worker-0 slots=2\nworker-1 slots=4\nworker-2 slots=3\n";

std::string included(const std::string& filter) {
  return shown(filter_hosts(parse_host_file(kThree, "hosts"), filter, std::nullopt));
}

std::string excluded(const std::string& filter) {
  return shown(filter_hosts(parse_host_file(kThree, "hosts"), std::nullopt, filter));
}

TEST(HostFile, HostsKeepTheirOrderAndCommentsAndEmptyLinesAreSkipped) {
  EXPECT_EQ(
      shown(parse_host_file(
          "# all\n\n  worker-1\tslots=2   # the big one\r\nadmin@10.0.0.7 slots=01\n \t\nb_2.example.org slots=1", "hosts")),
      "worker-1: 0 1\nadmin@10.0.0.7: 0\nb_2.example.org: 0\n");
  EXPECT_EQ(parse_host_file("admin@10.0.0.7 slots=1", "hosts").front().name(), "10.0.0.7");
}

TEST(HostFile, ALineThatCannotBeMeantIsRefusedWithItsNumber) {
  struct Bad {
    std::string text, named;
  };
  const std::vector<Bad> all = {
      {"", "hosts names no host"},
      {"# nothing\n", "hosts names no host"},
      {"a slots=1\nworker-1\n", "hosts, line 2: 'worker-1' does not say how many slots"},
      {"worker-1 4\n", "write 'worker-1 slots=N'"},
      {"worker-1:4\n", "'worker-1:4' is no name of a host"},
      {"worker-1 slots=0\n", "'slots=0' of host 'worker-1'"},
      {"worker-1 slots=-1\n", "'slots=-1'"},
      {"worker-1 slots=four\n", "'slots=four'"},
      {"worker-1 slots=\n", "'slots='"},
      {"worker-1 slots=2x\n", "'slots=2x'"},
      {"worker-1 slots=99999999999\n", "'slots=99999999999'"},
      {"worker-1 slots = 4\n", "'worker-1 slots = 4' does not say"},
      {"worker-1 slots=2 max_slots=4\n", "'max_slots=4' is not understood"},
      {"a slots=1\nb slots=1\n\nroot@a slots=2\n", "line 4: the host 'a' is named for the second time"},
      {"-oProxyCommand=touch slots=1\n", "'-oProxyCommand=touch' is no name of a host"},
      {"root@-oProxyCommand=x slots=1\n", "is no name of a host"},
      {"-V slots=1\n", "'-V' is no name of a host"},
      {"a;reboot slots=1\n", "'a;reboot' is no name of a host"},
      {"w[1-9] slots=1\n", "'w[1-9]' is no name of a host"},
      {"a,b slots=1\n", "'a,b' is no name of a host"},
      {"$(id) slots=1\n", "'$(id)' is no name of a host"},
      {std::string("a\0b slots=1\n", 12), "is no name of a host"},
      {"\x1b[2J slots=1\n", "'\\x1b[2J' is no name of a host"},
  };
  for (const Bad& bad : all) expect_parts(message_of<ConfigError>([&] { parse_host_file(bad.text, "hosts"); }), {bad.named});
}

TEST(HostFilters, TheyAreThoseOfDeepSpeed) {
  EXPECT_EQ(included("worker-0@worker-1:0,2"), "worker-0: 0 1\nworker-1: 0 2\n");
  EXPECT_EQ(included("worker-2@worker-0"), "worker-0: 0 1\nworker-2: 0 1 2\n") << "in the order of the file";
  EXPECT_EQ(included("worker-1:3,0,3"), "worker-1: 3 0\n");
  EXPECT_EQ(excluded("worker-1:0"), "worker-0: 0 1\nworker-1: 1 2 3\nworker-2: 0 1 2\n");
  EXPECT_EQ(excluded("worker-1@worker-2:1,2"), "worker-0: 0 1\nworker-2: 0\n");
  EXPECT_EQ(excluded("worker-0:0,1"), "worker-1: 0 1 2 3\nworker-2: 0 1 2\n") << "a host without slots is none";
  EXPECT_EQ(excluded(""), shown(parse_host_file(kThree, "hosts")));
  EXPECT_FALSE(filter_hosts(parse_host_file(kThree, "hosts"), "worker-1:0,1,2,3", "").front().is_filtered());
  EXPECT_TRUE(filter_hosts(parse_host_file(kThree, "hosts"), "worker-1:1", "").front().is_filtered());
}

TEST(HostFilters, WhatTheFileLacksIsNamed) {
  const auto refused = [](const std::string& inclusion, const std::string& exclusion) {
    return message_of<UsageError>([&] { filter_hosts(parse_host_file(kThree, "hosts"), inclusion, exclusion); });
  };
  expect_parts(refused("worker-3", ""), {"--deepspeed_inclusion_filter", "'worker-3'", "worker-0, worker-1, worker-2"});
  expect_parts(refused("", "worker-0:2"), {"--deepspeed_exclusion_filter", "slot 2 of host 'worker-0'", "from 0 to 1"});
  expect_parts(refused("worker-0:", ""), {"the slot '' of host 'worker-0'"});
  expect_parts(refused("worker-0:a", ""), {"the slot 'a' of host 'worker-0'"});
  expect_parts(refused("worker-0:-1", ""), {"the slot '-1' of host 'worker-0'"});
  expect_parts(refused("worker-0:0:1", ""), {"the slot '0:1' of host 'worker-0'"});
  expect_parts(refused("worker-0@@worker-1", ""), {"'worker-0@@worker-1', with an empty part"});
  expect_parts(refused("worker-0,worker-1", ""), {"'worker-0,worker-1', which is not in the hostfile"});
  expect_parts(refused("", "worker-0@worker-1@worker-2"), {"leaves no slot"});
  expect_parts(refused("worker-0", "worker-1"), {"cannot be used together"});
}

}  // namespace
}  // namespace accelerate::testing
