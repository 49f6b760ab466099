#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include <accelerate/core/error.h>
#include "config/config_file.h"
#include "config/yaml_scalar.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

using nlohmann::json;

std::string stored_in(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t files_in(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.name()), {}));
}

/// What comes after a line that makes any file a configuration.
json commands_of(const std::string& flow_list) {
  return parse_config("distributed_type: MULTI_CPU\ncommands: " + flow_list + "\n", "c.yaml").fields.at("commands");
}

TEST(YamlScalars, AreWhatPyYamlMakesOfThem) {
  // Each pair was looked at in PyYAML 6.0.3.
  const std::vector<std::pair<const char*, json>> values = {{"yes", true},      {"Off", false},        {"y", "y"},
                                                            {"TRUE", true},     {"tRUE", "tRUE"},      {"~", nullptr},
                                                            {"Null", nullptr},  {"nULL", "nULL"},      {"0", 0},
                                                            {"-0", 0},          {"+12", 12},           {"017", 15},
                                                            {"018", "018"},     {"0o17", "0o17"},      {"0x1F", 31},
                                                            {"-0b101", -5},     {"1_000", 1000},       {"12:30", 750},
                                                            {"1:60", "1:60"},   {"190:20:30", 685230}, {"1e8", "1e8"},
                                                            {"1.5e3", "1.5e3"}, {"1.5e+3", 1500.0},    {"1.", 1.0},
                                                            {".5", 0.5},        {"-.5", "-.5"},        {"1:30.5", 90.5},
                                                            {".inf", HUGE_VAL}, {"-.INF", -HUGE_VAL},  {"inf", "inf"},
                                                            {"-", "-"},         {"1.2.3", "1.2.3"},    {"127.0.0.1", "127.0.0.1"},
                                                            {"a:b", "a:b"},     {"1,2", "1,2"},        {"=", "="}};
  for (const auto& [text, value] : values) EXPECT_EQ(yaml_value(yaml_kind(text), text), value) << text;
  EXPECT_TRUE(std::isnan(yaml_value(yaml_kind(".NaN"), ".NaN").get<double>()));
  EXPECT_EQ(yaml_kind("2026-01-02"), YamlKind::timestamp);
  EXPECT_EQ(yaml_kind("2026-1-2"), YamlKind::text);
  EXPECT_EQ(yaml_kind("2026-1-2 3:04:05.5 +1:30"), YamlKind::timestamp);
  EXPECT_THROW(yaml_value(YamlKind::integer, "99999999999999999999"), ConfigError);
}

TEST(ConfigFile, AnchorsAliasesTagsAndMergeKeysAreResolved) {
  const json fields = parse_config(
                          "distributed_type: FSDP\n"
                          "fsdp_config:\n"
                          "  a: &a {p: 1, q: 2}\n"
                          "  b: &b {q: 3, r: 4}\n"
                          "  c:\n    p: 5\n    <<: [*a, *b]\n"
                          "  d: *a\n"
                          "num_processes: !!int \"3\"\n"
                          "tpu_name: !!str 5\n",
                          "c.yaml")
                          .fields;
  EXPECT_EQ(fields.at("fsdp_config").at("c"), json({{"p", 5}, {"q", 2}, {"r", 4}})) << "own keys win, then the first merged one";
  EXPECT_EQ(fields.at("fsdp_config").at("d"), json({{"p", 1}, {"q", 2}}));
  EXPECT_EQ(fields.at("num_processes"), 3);
  EXPECT_EQ(fields.at("tpu_name"), "5");
}

TEST(ConfigFile, EscapesAndQuotesAreRead) {
  EXPECT_EQ(commands_of(R"(["\N\_\L\x41\u00e9\U0001F600", 'it''s', "a\
    b"])"),
            json({"\u0085\u00a0\u2028A\u00e9\U0001F600", "it's", "ab"}));
  EXPECT_EQ(commands_of("\n- 'a\n\n\n  '\n- '\n\n  '\n- 'x\n  y'"), json({"a\n\n", "\n", "x y"}));
}

TEST(ConfigFile, TypesThatAreMeantAreAccepted) {
  const Config config = parse_config(
      "distributed_type: NO\nmixed_precision: no\nnum_processes: '4'\ngpu_ids: 0\nuse_cpu: 'no'\ndebug: 1\ndowncast_bf16: 'no'\n"
      "machine_rank:\nmain_process_port: 0\n",
      "c.yaml");
  EXPECT_EQ(config.fields.at("distributed_type"), "NO");
  EXPECT_EQ(config.fields.at("mixed_precision"), "no");
  EXPECT_EQ(integer_of(config, "num_processes"), 4);
  EXPECT_EQ(text_of(config, "gpu_ids"), "0");
  EXPECT_FALSE(flag_of(config, "use_cpu"));
  EXPECT_TRUE(flag_of(config, "debug"));
  EXPECT_FALSE(flag_of(config, "downcast_bf16"));
  EXPECT_EQ(integer_of(config, "machine_rank"), 0);
  EXPECT_EQ(integer_of(config, "main_process_port"), 0);
  EXPECT_EQ(text_of(config, "main_process_ip"), std::nullopt);
}

TEST(ConfigFile, UnknownKeysOfASectionAreKept) {
  const Config config = parse_config("distributed_type: FSDP\nfsdp_config: {some_day: [1, {x: y}]}\n", "c.yaml");
  EXPECT_EQ(parse_config(config_text(config, "d.json"), "d.json").fields, config.fields);
  EXPECT_EQ(config.fields.at("fsdp_config").at("some_day").at(1).at("x"), "y");
}

struct BadConfig {
  const char* name;
  std::string text;
  int line;  // 0: none
  std::string says;
};

std::vector<BadConfig> bad_configs() {
  const std::string good = "distributed_type: MULTI_GPU\n";
  std::string bomb = good + "fsdp_config:\n  a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    bomb += "  a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + alias;
    for (int copy = 0; copy < 9; ++copy) bomb += ", " + alias;
    bomb += "]\n";
  }
  return {
      {"c.yaml", "", 1, "empty"},
      {"c.yaml", "# nothing but words\n", 1, "empty"},
      {"c.yaml", "---\n", 1, "empty"},
      {"c.yaml", "null\n", 1, "empty"},
      {"c.json", " \n", 1, "empty"},
      {"c.yaml", "- a\n- b\n", 1, "a mapping"},
      {"c.yaml", "just words\n", 1, "a mapping"},
      {"c.json", "[1]", 1, "a mapping"},
      {"c.json", "null", 1, "a mapping"},
      {"c.yaml", "num_processes: 2\n", 0, "distributed_type is missing"},
      {"c.yaml", "distributed_type:\n", 1, "distributed_type is missing"},
      {"c.yaml", good + "num_procesess: 2\n", 2, "num_processes"},
      {"c.yaml", good + "debug: true\nzebra: 1\n", 3, "unknown key zebra"},
      {"c.yaml", good + "zebra: 1\napple: {a: 1}\n", 3, "Also unknown: zebra"},
      {"c.yaml", good + "ec2_instance_type: x\n", 2, "another compute_environment"},
      {"c.json", "{\n \"distributed_type\": \"NO\",\n \"mixed_precison\": \"no\"\n}", 3, "mixed_precision"},
      {"c.yaml", good + "1: 2\n", 2, "unknown key 1"},
      {"c.yaml", good + "\"\": 2\n", 2, "unknown key"},
      {"c.yaml", good + "? [a, b]\n: c\n", 2, "key must be a string"},
      {"c.yaml", good + "~: c\n", 2, "unknown key null"},
      {"c.yaml", "distributed_type: MULTI_GUP\n", 1, "MULTI_GPU"},
      {"c.yaml", "distributed_type: multi_gpu\n", 1, "one of"},
      {"c.yaml", "distributed_type: yes\n", 1, "one of"},
      {"c.yaml", "distributed_type: TPU\n", 1, "one of"},
      {"c.yaml", "distributed_type: [NO]\n", 1, "one of"},
      {"c.yaml", "compute_environment: MARS\ndistributed_type: NO\n", 1, "LOCAL_MACHINE"},
      {"c.yaml", "compute_environment: 3\ndistributed_type: NO\n", 1, "one of"},
      {"c.yaml", good + "mixed_precision: fp61\n", 2, "The closest is fp16"},
      {"c.yaml", good + "mixed_precision: yes\n", 2, "one of no, fp16"},
      {"c.yaml", good + "mixed_precision: 16\n", 2, "one of no, fp16"},
      {"c.yaml", good + "num_processes: many\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: 2.5\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: 1e8\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: yes\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: [2]\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: ''\n", 2, "an integer"},
      {"c.yaml", good + "num_processes: 99999999999999999999999\n", 2, "64-bit integer"},
      {"c.yaml", good + "machine_rank: first\n", 2, "an integer"},
      {"c.yaml", good + "main_process_port: http\n", 2, "an integer"},
      {"c.yaml", good + "use_cpu: maybe\n", 2, "true or false"},
      {"c.yaml", good + "debug: 2\n", 2, "true or false"},
      {"c.yaml", good + "same_network: {}\n", 2, "true or false"},
      {"c.yaml", good + "downcast_bf16: perhaps\n", 2, "true or false"},
      {"c.yaml", good + "main_process_ip: true\n", 2, "in quotes"},
      {"c.yaml", good + "main_training_function: yes\n", 2, "in quotes"},
      {"c.yaml", good + "gpu_ids: [0, 1]\n", 2, "a string"},
      {"c.yaml", good + "commands: ls\n", 2, "a list"},
      {"c.yaml", good + "commands: [[ls]]\n", 2, "a list"},
      {"c.yaml", good + "tpu_env: {A: 1}\n", 2, "a list"},
      {"c.yaml", good + "fsdp_config: FULL_SHARD\n", 2, "a mapping"},
      {"c.yaml", good + "dynamo_config: [inductor]\n", 2, "a mapping"},
      {"c.yaml", good + "debug: [true\n", 3, "invalid YAML"},
      {"c.yaml", good + "tpu_name: 'open\n", 3, "ends too early"},
      {"c.yaml", good + "tpu_name: &a \"open\n", 3, "ends too early"},
      {"c.yaml", good + "tpu_name: 'open", 3, "ends too early"},
      {"c.yaml", good + "a: b: c\n", 2, "invalid YAML"},
      {"c.yaml", good + "\tdebug: true\n", 2, "invalid YAML"},
      {"c.yaml", good + "tpu_name: \"\\q\"\n", 2, "invalid YAML"},
      {"c.yaml", good + "debug: *nothing\n", 2, "invalid YAML"},
      {"c.yaml", good + "}\n", 2, "invalid YAML"},
      {"c.yaml", good + "---\n" + good, 2, "second document"},
      {"c.yaml", good + "---\n", 2, "second document"},
      {"c.yaml", "! ,!e", 1, "second document"},  // once read without an end
      {"c.yaml", good + "tpu_name: !!python/object/apply:os.system [ls]\n", 2, "tag"},
      {"c.yaml", good + "tpu_name: !mine 3\n", 2, "tag"},
      {"c.yaml", good + "tpu_name: !!binary aGVsbG8=\n", 2, "tag"},
      {"c.yaml", good + "num_processes: !!int two\n", 2, "an integer"},
      {"c.yaml", good + "<<: 3\n", 2, "merges"},
      {"c.yaml", good + "fsdp_config: &a {b: *a}\n", 0, ""},
      {"c.yaml", bomb, 0, "20000 values"},
      {"c.yaml", good + "commands: " + std::string(600, '[') + std::string(600, ']') + "\n", 2, ""},
      {"c.yaml", good + "fsdp_config: {a: " + std::string(100, '[') + std::string(100, ']') + "}\n", 2, "64 levels"},
      {"c.yaml", good + "tpu_name: caf\xe9\n", 0, "UTF-8"},
      {"c.yaml", good + std::string("tpu_name: a\0b\n", 14), 2, "control character 0x00"},
      {"c.yaml", good + "tpu_name: \x1b[0m\n", 2, "control character 0x1b"},
      {"c.yaml",
       std::string("\xff\xfe"
                   "d\0",
                   4),
       0, "UTF-8"},
      {"c.yaml", good + "#" + std::string(1 << 20, 'x') + "\n", 0, "1024 KiB"},
      {"c.json", "{\"distributed_type\": ", 1, "ends too early"},
      {"c.json", "{\"distributed_type\": \"NO\",\n}", 2, "invalid JSON"},
      {"c.json", "{'distributed_type': 'NO'}", 1, "invalid JSON"},
      {"c.json", "distributed_type: NO\n", 1, "invalid JSON"},
      {"c.json", "{\"distributed_type\": \"NO\"} x", 1, "invalid JSON"},
      {"c.json", "{\"distributed_type\": \"NO\", \"num_processes\": 1e999}", 1, "too large"},
      {"c.json", "{\n\"distributed_type\": \"NO\",\n\"num_processes\": \"x\"}", 3, "an integer"},
      {"c.json", "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}", 1, "64 levels"},
      {"c.yaml", "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: NO\niam_role_name: r\n", 0,
       "ec2_instance_type is missing"},
      {"c.yaml", "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: MULTI_GPU\n", 2, "one of NO, DATA_PARALLEL"},
  };
}

TEST(ConfigFile, WhatIsWrongIsRefusedInOneLineThatNamesFileAndLineAndNothingIsWritten) {
  const auto cases = bad_configs();
  EXPECT_GE(cases.size(), 50u);
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(bad.text.substr(0, 200));
    TemporaryFolder folder;
    const std::string path = folder / bad.name;
    std::ofstream(path, std::ios::binary) << bad.text;
    const auto result = run_program({ACCELERATE_CLI, "config", "update", "--config_file", path});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.output, "");
    EXPECT_EQ(std::count(result.errors.begin(), result.errors.end(), '\n'), 1) << result.errors;
    const std::string place = path + (bad.line > 0 ? ":" + std::to_string(bad.line) + ": " : ":");
    EXPECT_NE(result.errors.find(place), std::string::npos) << result.errors << "expected " << place;
    EXPECT_NE(result.errors.find(bad.says), std::string::npos) << result.errors << "expected " << bad.says;
    EXPECT_LT(result.errors.size(), 700u) << result.errors;
    EXPECT_EQ(stored_in(path), bad.text);
    EXPECT_EQ(files_in(folder), 1u);
  }
}

TEST(ConfigFile, WhatIsNoFileIsRefusedByName) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"missing.yaml", "folder", "pipe", "missing/c.yaml"}) {
    const auto result = run_program({ACCELERATE_CLI, "config", "update", "--config_file", folder / name});
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_NE(result.errors.find(folder / name), std::string::npos) << result.errors;
  }
  for (const char* name : {"folder", "pipe"}) {
    EXPECT_THROW(write_config_text("x", folder / name), ConfigError) << name;
    EXPECT_THROW(check_config_target(folder / name), ConfigError) << name;
  }
}

TEST(ConfigFile, IsWrittenWithItsFoldersAndKeepsItsPermissions) {
  TemporaryFolder folder;
  const auto path = folder / "a" / "b" / "c.yaml";
  write_config_text("one\n", path);
  EXPECT_EQ(stored_in(path), "one\n");
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  write_config_text("two\n", path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_EQ(stored_in(path), "two\n");
}

TEST(ConfigFile, ALinkStaysALink) {
  TemporaryFolder folder;
  std::filesystem::create_directory(folder / "real");
  std::filesystem::create_symlink("real/c.yaml", folder / "link.yaml");
  write_config_text("one\n", folder / "link.yaml");  // it leads to nothing as yet
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.yaml"));
  EXPECT_EQ(stored_in(folder / "real" / "c.yaml"), "one\n");
  write_config_text("two\n", folder / "link.yaml");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.yaml"));
  EXPECT_EQ(stored_in(folder / "real" / "c.yaml"), "two\n");
}

TEST(ConfigFile, WithoutRoomTheOldFileStays) {
  TemporaryFolder folder;
  const std::string path = folder / "c.yaml", old = "distributed_type: MULTI_CPU\nnum_processes: 2\n";
  std::ofstream(path) << old;
  // A limit on the size of files is the disk that is full; the signal that comes with it is ignored.
  const auto result = run_program(
      {"sh", "-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" config update --config_file \"$1\"", ACCELERATE_CLI, path});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(stored_in(path), old);
  EXPECT_EQ(files_in(folder), 1u) << "nothing is left beside it";
}

TEST(ConfigFile, TheDefaultPlaceIsThatOfPython) {
  const auto place = [](const std::map<std::string, std::string>& variables) {
    return default_config_path([&](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    });
  };
  EXPECT_EQ(place({{"HOME", "/h"}}), "/h/.cache/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(place({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(place({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/f"}}), "/h/f/accelerate/default_config.yaml");
}

}  // namespace
}  // namespace accelerate::testing
