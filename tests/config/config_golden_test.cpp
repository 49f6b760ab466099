#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include <accelerate/core/error.h>
#include "config/config_file.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using nlohmann::json;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << "cannot read " << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string golden_config(const std::string& name) { return std::string(ACCELERATE_TEST_GOLDEN) + "/config_yaml/" + name; }

/// Where ours is another on purpose: the file, and the sentence of docs/python_to_cpp.md that says so.
const std::map<std::string, std::string>& listed_differences() {
  static const std::string kNo = "An unquoted `no` of `distributed_type` or `mixed_precision` is the word";
  static const std::string kPrecision = "A `mixed_precision` that does not exist is refused when the file is read";
  static const std::string kSageMaker = "A SageMaker file whose `distributed_type` is NO is read";
  static const std::string kDate = "A date in a configuration is text";
  static const std::map<std::string, std::string> listed = {{"read_unquoted_no.yaml", kNo},
                                                            {"updated of read_unquoted_no.yaml", kNo},
                                                            {"read_bad_precision.yaml", kPrecision},
                                                            {"updated of read_bad_precision.yaml", kPrecision},
                                                            {"read_sagemaker.yaml", kSageMaker},
                                                            {"updated of read_sagemaker.yaml", kSageMaker},
                                                            {"updated of read_yaml_scalars.yaml", kDate}};
  return listed;
}

/// A case that holds although it is listed is as wrong as one that does not hold and is not.
void judge(const std::string& name, bool held, const std::string& ours) {
  const auto listed = listed_differences().find(name);
  if (listed == listed_differences().end()) {
    EXPECT_TRUE(held) << name << " gave " << ours;
    return;
  }
  EXPECT_FALSE(held) << name << " held although it is listed as a difference";
  const std::string documented = content_of(std::string(ACCELERATE_TEST_GOLDEN) + "/../../docs/python_to_cpp.md");
  EXPECT_NE(documented.find(listed->second), std::string::npos) << "docs/python_to_cpp.md does not list: " << listed->second;
}

json golden_index() { return json::parse(content_of(golden_config("index.json"))); }

/// What `call` returns, or the message of its error after "error: ".
template <typename Call>
std::string outcome(Call call) {
  try {
    return call();
  } catch (const ConfigError& error) {
    return std::string("error: ") + error.what();
  }
}

TEST(GoldenConfig, EveryFileIsReadAsPythonReadsIt) {
  int cases = 0;
  const json index = golden_index();  // a loop would not keep it
  for (const auto& c : index.at("read")) {
    const std::string name = c.at("file");
    const std::string ours = outcome([&] { return read_config(golden_config(name)).fields.dump(); });
    const json& expected = c.at("result");
    const bool held = expected.contains("error") ? ours.starts_with("error: ") : ours == expected.at("fields").dump();
    judge(name, held, ours);
    ++cases;
  }
  EXPECT_GE(cases, 20);
}

TEST(GoldenConfig, FilesHaveTheBytesThatPythonWrites) {
  const json index = golden_index();  // a loop would not keep it
  for (const auto& c : index.at("written")) {
    const Config made = make_config(c.at("constructor"), "made");
    json expected = c.at("reloaded").at("fields");
    for (const char* format : {"yaml", "json"}) {
      if (c.at(format).is_null()) continue;
      const std::string file = c.at(format);
      // Constructors of Python fill in less than its reader: the number of processes is -1 where none was given.
      Config config = made;
      if (!c.at("constructor").contains("num_processes") && made.fields.contains("num_processes"))
        config.fields["num_processes"] = -1;
      EXPECT_EQ(config_text(config, file), content_of(golden_config(file)));
      EXPECT_EQ(read_config(golden_config(file)).fields, expected) << file;
    }
  }
}

TEST(GoldenConfig, UpdatedFilesHaveTheBytesThatPythonWrites) {
  const json index = golden_index();  // a loop would not keep it
  for (const auto& c : index.at("updated")) {
    const std::string before = c.at("before");
    const std::string ours = outcome([&] { return config_text(read_config(golden_config(before)), before); });
    const bool fails = c.at("result").is_object();
    judge("updated of " + before, fails ? ours.starts_with("error: ") : ours == content_of(golden_config(c.at("result"))), ours);
  }
}

}  // namespace
}  // namespace accelerate::testing
