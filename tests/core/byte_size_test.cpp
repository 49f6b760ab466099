#include <accelerate/core/byte_size.h>
#include <accelerate/core/error.h>
#include <accelerate/core/ordered_map.h>
#include <gtest/gtest.h>

#include "core/class_name.h"
#include "support/error_text.h"

namespace accelerate::testing {

using namespace detail;
namespace {

TEST(ByteSize, ReadsWhatPythonReads) {
  EXPECT_EQ(ByteSize("8MiB").bytes(), 8 << 20);
  EXPECT_EQ(ByteSize("1.5gib").bytes(), 1.5 * (1 << 30));
  EXPECT_EQ(ByteSize("512KB").bytes(), 512000);
  EXPECT_EQ(ByteSize("3Gb").bytes(), 375000000);
  EXPECT_EQ(ByteSize(" 12 MB").bytes(), 12000000);
  EXPECT_EQ(ByteSize(7).bytes(), 7);
  EXPECT_EQ(to_string(ByteSize("1GiB")), "1073741824");
  EXPECT_EQ(to_string(ByteSize(0.125)), "0.125");
  EXPECT_LT(ByteSize("1GB"), ByteSize("1GiB"));
}

TEST(ByteSize, WhatIsNoSizeIsNamed) {
  for (const char* text : {"", "7", "GB", "-1GB", "2TB", "lots", "1 2GB", "nanGB", "infGB", "9e99GB", "0x1GB"}) {
    expect_parts(message_of<UsageError>([&] { ByteSize size(text); }), {"'" + std::string(text) + "'"});
  }
  EXPECT_THROW(ByteSize(-1), UsageError);
  EXPECT_THROW(ByteSize(static_cast<const char*>(nullptr)), UsageError);
}

TEST(ClassName, MatchesInFullOrByItsLastComponentWithOrWithoutImpl) {
  for (const char* written : {"Block", "BlockImpl", "my::Block", "my::BlockImpl"})
    EXPECT_TRUE(names_class(written, "my::BlockImpl")) << written;
  for (const char* written : {"", "lock", "Bloc", "your::Block", "y::Block", "Impl", "::Block"}) {
    EXPECT_FALSE(names_class(written, "my::BlockImpl")) << written;
  }
  EXPECT_TRUE(names_class("Block", "Block"));
  EXPECT_TRUE(names_class("BlockImpl", "Block"));
  EXPECT_TRUE(names_class("Block", "(anonymous namespace)::BlockImpl"));
  EXPECT_TRUE(names_class("Impl", "my::Impl"));
  EXPECT_FALSE(names_class("Other>", "Block<my::Other>"));
  EXPECT_FALSE(any_names_class({}, "Block"));
}

TEST(OrderedMap, KeepsTheOrderOfFirstComing) {
  OrderedMap<std::string, int> map = {{"b", 1}, {"a", 2}, {"b", 3}};
  map["c"] = 4;
  std::string text;
  for (const auto& [key, value] : map) text += key + std::to_string(value);
  EXPECT_EQ(text, "b3a2c4");
  EXPECT_EQ(map.find("d"), nullptr);
  EXPECT_THROW(map.at("d"), UsageError);
  EXPECT_TRUE(map == (OrderedMap<std::string, int>{{"c", 4}, {"a", 2}, {"b", 3}}));
  EXPECT_FALSE(map == (OrderedMap<std::string, int>{{"c", 4}, {"a", 2}}));
}

}  // namespace
}  // namespace accelerate::testing
