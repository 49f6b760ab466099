#include <accelerate/big_model/device_map.h>
#include <accelerate/big_model/max_memory.h>
#include <accelerate/core/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <unordered_set>

#include "support/error_text.h"

namespace place_claims {
namespace {

using accelerate::DeviceMap;
using accelerate::DeviceMapChoice;
using accelerate::MaxMemory;
using accelerate::Place;
using accelerate::UsageError;
using accelerate::testing::message_of;

TEST(Place, IsMadeOfDevicesIndicesAndTexts) {
  EXPECT_EQ(Place(0), Place("0"));
  EXPECT_EQ(Place(1), Place(c10::Device("cuda:1")));
  EXPECT_EQ(Place(c10::kCUDA), Place("cuda:0"));
  EXPECT_EQ(Place(torch::kCPU), Place("cpu"));
  EXPECT_EQ(Place("cpu:0"), Place());
  EXPECT_EQ(Place("disk"), Place::disk());
  EXPECT_NE(Place("disk"), Place("cpu"));
  EXPECT_EQ(Place("cuda:1").device(), c10::Device(c10::kCUDA, 1));
}

TEST(Place, PrintsAsPythonDoes) {
  std::ostringstream text;
  text << Place(3) << " " << Place("cpu") << " " << Place("disk") << " " << Place("cuda") << " " << Place("mps") << " "
       << Place("meta");
  EXPECT_EQ(text.str(), "3 cpu disk 0 mps meta");
}

TEST(Place, IsOrderedAsMemoryIsFilled) {
  std::vector<Place> places = {"meta", "disk", "cpu", 10, "mps", 2, 0};
  std::sort(places.begin(), places.end());
  EXPECT_EQ(places, (std::vector<Place>{0, 2, 10, "mps", "cpu", "disk", "meta"}));
  EXPECT_EQ((std::unordered_set<Place>{0, "0", "cuda:0", "cpu", "disk", "disk"}).size(), 3u);
}

TEST(Place, WhatIsNoPlaceIsNamed) {
  for (const char* text : {"gpu", "", "cuda:x", "Disk", "1.5"}) {
    EXPECT_NE(message_of<UsageError>([&] { Place place(text); }).find("'" + std::string(text) + "'"), std::string::npos) << text;
  }
  EXPECT_NE(message_of<UsageError>([] { Place place(-1); }).find("-1"), std::string::npos);
  EXPECT_NE(message_of<UsageError>([] { Place place(1000); }).find("1000"), std::string::npos);
  EXPECT_THROW(Place::disk().device(), UsageError);
}

TEST(DeviceMap, FindsTheLongestEntryThatContainsAName) {
  const DeviceMap map = {{"a", 0}, {"a.b", "cpu"}, {"ab", "disk"}};
  EXPECT_EQ(map.place_of("a.x.weight"), Place(0));
  EXPECT_EQ(map.place_of("a.b"), Place("cpu"));
  EXPECT_EQ(map.place_of("a.b.weight"), Place("cpu"));
  EXPECT_EQ(map.place_of("a.bc"), Place(0));
  EXPECT_EQ(map.place_of("ab.weight"), Place("disk"));
  EXPECT_FALSE(map.place_of("abc").has_value());
  EXPECT_EQ((DeviceMap{{"", 1}}).place_of("anything.at.all"), Place(1));
}

TEST(DeviceMap, KeepsItsOrderAndComparesWithoutIt) {
  DeviceMap map = {{"b", 0}, {"a", "cpu"}};
  map["c"] = torch::kCPU;
  map["b"] = "disk";
  std::string names;
  for (const auto& [name, place] : map) names += name + "=" + to_string(place) + " ";
  EXPECT_EQ(names, "b=disk a=cpu c=cpu ");
  EXPECT_EQ(map, (DeviceMap{{"a", "cpu"}, {"b", "disk"}, {"c", "cpu"}}));
  EXPECT_FALSE(map == (DeviceMap{{"a", "cpu"}, {"b", "disk"}, {"c", 0}}));
  EXPECT_NE(message_of<UsageError>([&] { map.at("d"); }).find("'d'"), std::string::npos);
}

TEST(DeviceMapChoice, IsARuleAPlaceOrAMap) {
  for (const char* rule : {"auto", "balanced", "balanced_low_0", "sequential"}) {
    ASSERT_NE(DeviceMapChoice(rule).rule(), nullptr);
    EXPECT_EQ(*DeviceMapChoice(rule).rule(), rule);
  }
  EXPECT_EQ(*DeviceMapChoice("cpu").map(), (DeviceMap{{"", "cpu"}}));
  EXPECT_EQ(*DeviceMapChoice(torch::kCPU).map(), (DeviceMap{{"", "cpu"}}));
  EXPECT_EQ(*DeviceMapChoice(1).map(), (DeviceMap{{"", 1}}));
  const DeviceMapChoice given = {{"a", 0}, {"b", "disk"}};
  EXPECT_EQ(*given.map(), (DeviceMap{{"a", 0}, {"b", "disk"}}));
  EXPECT_FALSE(DeviceMapChoice().has_value());
  EXPECT_NE(message_of<UsageError>([] { DeviceMapChoice choice("automatic"); }).find("'automatic'"), std::string::npos);
}

TEST(MaxMemory, IsPutIntoFillingOrder) {
  const MaxMemory memory = accelerate::get_max_memory({{"disk", 9}, {"cpu", "1KB"}, {2, "2KiB"}, {0, 5}});
  std::string text;
  for (const auto& [place, limit] : memory) text += to_string(place) + "=" + to_string(limit) + " ";
  EXPECT_EQ(text, "0=5 2=2048 cpu=1000 disk=9 ");
  EXPECT_NE(message_of<UsageError>([] { accelerate::get_max_memory({{"meta", 1}}); }).find("meta"), std::string::npos);
}

TEST(MaxMemory, OfThisMachineHasTheHost) {
  const MaxMemory memory = accelerate::get_max_memory();
  ASSERT_TRUE(memory.contains("cpu"));
  EXPECT_GT(memory.at("cpu").bytes(), 1e6);
}

TEST(MaxMemory, WarnsOfAcceleratorsThatThisMachineLacks) {
  testing::internal::CaptureStderr();
  accelerate::get_max_memory({{99, "1GB"}});
  EXPECT_NE(testing::internal::GetCapturedStderr().find("accelerator 99"), std::string::npos);
}

}  // namespace
}  // namespace place_claims
