#include <accelerate/core/error.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/byte_sink.h"
#include "core/escaped.h"
#include "core/file.h"
#include "core/utf8.h"
#include "formats/torch_file.h"
#include "formats/zip_writer.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {

using namespace detail;
namespace {

namespace fs = std::filesystem;
using HostileJson = nlohmann::json;

/// A title for the terminal, a colour by C1, a text that runs backwards, a second line, and characters that nobody sees.
const std::string kHostile =
    "a\x1b]0;owned\x07 \xc2\x9b\x33\x31m \xe2\x80\xae txt.exe\nforged\r\t\x7f "
    "\xe2\x80\x8b\xe2\x80\xa8\xef\xbb\xbf\xf3\xa0\x81\x81 é漢";
const std::string kShown =
    "a\\x1b]0;owned\\x07 \\u009b31m \\u202e txt.exe\\nforged\\r\\t\\x7f \\u200b\\u2028\\ufeff\\U000e0041 é漢";

/// Every code point that moves a cursor, turns text around or is invisible. Written without looking at the library's list.
bool is_harmless(char32_t point) {
  if (point == '\n') return true;
  if (point < 0x20 || (point >= 0x7f && point < 0xa0)) return false;
  if ((point >= 0x200b && point <= 0x200f) || (point >= 0x2028 && point <= 0x202e)) return false;
  if ((point >= 0x2060 && point <= 0x206f) || point == 0xfeff || point == 0xad || point == 0x61c) return false;
  return point < 0xe0000 || point > 0xe0fff;
}

void expect_harmless(const std::string& text, const std::string& about) {
  for (std::string_view rest = text; !rest.empty();) {
    const CodePoint point = first_code_point(rest);
    const auto lead = static_cast<unsigned>(static_cast<unsigned char>(rest[0]));
    ASSERT_GT(point.bytes, 0u) << about << ": byte " << lead << " is not UTF-8, of "
                               << HostileJson(text).dump(-1, ' ', true, HostileJson::error_handler_t::replace);
    ASSERT_TRUE(is_harmless(point.value)) << about << ": U+" << std::hex << static_cast<unsigned>(point.value) << " in "
                                          << HostileJson(text).dump(-1, ' ', true, HostileJson::error_handler_t::replace);
    rest.remove_prefix(point.bytes);
  }
}

ProgramResult harmless_run(std::vector<std::string> arguments, RunOptions options = {}) {
  arguments.insert(arguments.begin(), ACCELERATE_CLI);
  options.limit = std::chrono::seconds(20);
  const auto result = run_program(arguments, std::move(options));
  std::string line;
  for (const auto& word : arguments) line += " " + escaped(word);
  std::string output = result.output;
  std::erase(output, '\t');  // `accelerate env` writes some of its own; those of files are tested by what they become
  expect_harmless(output, line);
  expect_harmless(result.errors, line);
  return result;
}

std::string safetensors_bytes(const HostileJson& header, size_t data) {
  const std::string text = header.dump();
  const uint64_t size = text.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + text + std::string(data, 'x');
}

HostileJson entry(const std::string& dtype = "U8") { return {{"dtype", dtype}, {"shape", {1}}, {"data_offsets", {0, 1}}}; }

void write_bytes(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string pickled_text(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), 4) + text;
}

std::string archive_bytes(const std::string& folder, const std::string& pickle, const std::string& other = "version") {
  MemorySink sink;
  ZipWriter writer(sink, folder);
  writer.add("data.pkl", pickle);
  writer.add(other, "3\n");
  writer.finish();
  return sink.bytes();
}

/// Two hostile names for one tensor.
std::string tied_torch_file() {
  PickleTree tree;
  PickleTensor tensor;
  tensor.storage = "0";
  tensor.dtype = find_dtype("uint8");
  tensor.storage_elements = 1;
  tensor.sizes = tensor.strides = {1};
  PickleNode* const node = tree.tensor(tensor);
  tree.root = tree.dict({{tree.text(kHostile), node}, {tree.text(kHostile + "2"), node}});
  MemorySink sink;
  TorchFileWriter writer(sink, "archive", *tree.root);
  writer.begin("0", 1);
  writer.write("x", 1);
  writer.finish();
  return sink.bytes();
}

/// Folders, each with weights under the name that commands look for; hostile in one way each.
std::vector<std::string> make_hostile_folders(const TemporaryFolder& folder) {
  const std::string index = "model.safetensors.index.json", single = "model.safetensors", torch = "pytorch_model.bin";
  const auto index_of = [](const std::string& tensor, const HostileJson& shard) {
    return HostileJson{{"metadata", HostileJson::object()}, {"weight_map", {{tensor, shard}}}}.dump();
  };
  const std::string good = safetensors_bytes({{"w", entry()}}, 1);
  std::string flipped = archive_bytes("archive", "\x80\x02" + pickled_text("plain") + ".", kHostile);
  flipped[flipped.find("plain")] = 'P';
  const std::string global =
      "\x80\x02"
      "cos" +
      kHostile.substr(0, 14) + "\nsystem" + kHostile.substr(0, 14) + "\n.";
  const std::string two_of_a_name =
      "{\"weight_map\":{" + HostileJson(kHostile).dump() + ":\"a\"," + HostileJson(kHostile).dump() + ":\"b\"}}";
  const std::vector<std::pair<std::string, std::string>> files = {
      {single, safetensors_bytes({{kHostile, entry()}, {"__metadata__", {{kHostile, kHostile}}}}, 1)},
      {single, safetensors_bytes({{kHostile, entry("\x1b]0;owned\x07" + kHostile)}}, 1)},
      {single, safetensors_bytes({{kHostile, entry()}}, 2)},
      {single, safetensors_bytes({{kHostile, {{kHostile, kHostile}}}}, 1)},
      {single, "\x05\0\0\0\0\0\0\0{\x1b\xff\x9b}"},
      {index, index_of("w", kHostile)},
      {index, index_of(kHostile, "../" + kHostile)},
      {index, index_of(kHostile, 1)},
      {index, index_of(kHostile, "good.safetensors")},
      {index, two_of_a_name},
      {index, "{\"weight_map\":\x1b\xff"},
      {torch, archive_bytes("archive", "\x80\x02}" + pickled_text(kHostile) + pickled_text(kHostile) + "s.")},
      {torch, archive_bytes("archive", "\x80\x02" + pickled_text(std::string(59, 'x') + "é" + kHostile) + ".")},
      {torch,
       archive_bytes("archive", "\x80\x02}" + pickled_text(kHostile) + "K\x01" + "s" + pickled_text(kHostile) + "K\x02s.")},
      {torch, archive_bytes("archive", global)},
      {torch, archive_bytes(kHostile, "\x80\x02N.", kHostile)},
      {torch, archive_bytes("archive", "I\x1b\x9b\n.")},
      {torch, flipped},
      {torch, tied_torch_file()},
      {".metadata", global},
  };
  std::vector<std::string> folders;
  for (const auto& [name, bytes] : files) {
    folders.push_back(folder / ("case_" + std::to_string(folders.size())));
    write_bytes(fs::path(folders.back()) / name, bytes);
    if (name == index) write_bytes(fs::path(folders.back()) / "good.safetensors", good);
  }
  return folders;
}

TEST(HostileFiles, NothingOfThemReachesTheTerminal) {
  const TemporaryFolder folder;
  for (const auto& hostile : make_hostile_folders(folder)) {
    for (const auto& file : fs::directory_iterator(hostile)) {
      harmless_run({"inspect", file.path()});
      const auto in_json = harmless_run({"inspect", file.path(), "--json"});
      EXPECT_TRUE(in_json.exit_code != 0 || HostileJson::accept(in_json.output)) << in_json.output;
    }
    const auto all = harmless_run({"inspect", hostile, "--json"});
    EXPECT_TRUE(HostileJson::accept(all.output)) << all.output;
    harmless_run({"inspect", hostile});
    harmless_run({"merge-weights", hostile, hostile + "/out"});
    harmless_run({"merge-weights", hostile, hostile + "/out", "--unsafe_serialization"});
    harmless_run({"estimate-memory", hostile});
    const auto estimate = harmless_run({"estimate-memory", hostile, "--json"});
    EXPECT_TRUE(estimate.exit_code != 0 || HostileJson::accept(estimate.output)) << estimate.output;
  }
}

TEST(HostileFiles, WhatTheyHoldIsShownEscapedOnOneLineAndWholeInJson) {
  const TemporaryFolder folder;
  const std::string file = folder / "model.safetensors";
  write_bytes(file, safetensors_bytes({{kHostile, entry()}, {"__metadata__", {{kHostile, kHostile}}}}, 1));
  const auto table = harmless_run({"inspect", file});
  EXPECT_NE(table.output.find("\n" + kShown + "  uint8"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find("\n  " + kShown + "  " + kShown + "\n"), std::string::npos) << table.output;
  const auto in_json = HostileJson::parse(harmless_run({"inspect", file, "--json"}).output);
  EXPECT_EQ(in_json["tensors"][0]["name"], kHostile);
  EXPECT_EQ(in_json["metadata"][kHostile], kHostile);
  EXPECT_EQ(HostileJson::parse(harmless_run({"estimate-memory", file, "--json"}).output)["largest_layers"][0],
            kHostile.substr(0, kHostile.find(".exe")));
  write_bytes(file, safetensors_bytes({{kHostile, entry(kHostile)}}, 1));
  const auto refused = harmless_run({"merge-weights", folder.name(), folder / "out"});
  EXPECT_NE(refused.errors.find(kShown + " has the unknown dtype " + kShown + "."), std::string::npos) << refused.errors;
  EXPECT_EQ(std::count(refused.errors.begin(), refused.errors.end(), '\n'), 1) << refused.errors;
  // Nor does it fill the screen.
  write_bytes(file, safetensors_bytes({{std::string(1 << 20, '\x1b'), entry(kHostile)}}, 1));
  EXPECT_LT(harmless_run({"inspect", file}).errors.size(), 10'000U);
}

TEST(HostileFiles, NamesOfFilesAndFoldersAreEscapedAsWell) {
  const TemporaryFolder folder;
  const std::string hostile = folder / (kHostile + "\xff\x9b");
  write_bytes(fs::path(hostile) / ("\xfe" + kHostile + ".safetensors"), safetensors_bytes({{"w", entry()}}, 1));
  write_bytes(fs::path(hostile) / "model.safetensors", safetensors_bytes({{"w", entry()}}, 1));
  write_bytes(fs::path(hostile) / (kHostile + ".pt"), "no torch file");
  const auto table = harmless_run({"inspect", hostile});
  EXPECT_NE(table.output.find("\n\\xfe" + kShown + ".safetensors"), std::string::npos) << table.output;
  EXPECT_NE(table.output.find(kShown + "\\xff\\x9b\n"), std::string::npos) << table.output;
  const auto in_json = HostileJson::parse(harmless_run({"inspect", hostile, "--json"}).output);
  EXPECT_EQ(in_json["folder"], (folder / kHostile).string() + "\\xff\\x9b");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"merge-weights", hostile, hostile + "/out"},
                                                  {"estimate-memory", hostile},
                                                  {"estimate-memory", hostile, "--json"}}) {
    EXPECT_EQ(harmless_run(command).exit_code, 0) << command[0];
  }
  for (const std::vector<std::string>& command : {std::vector<std::string>{"inspect", hostile + "/nothing"},
                                                  {"inspect", "a", hostile},
                                                  {"inspect", "--" + kHostile},
                                                  {"merge-weights", hostile + "\xff", "out"},
                                                  {"merge-weights", hostile, hostile + "/model.safetensors/x"},
                                                  {"estimate-memory", kHostile},
                                                  {"estimate-memory", "m", "--dtypes", kHostile},
                                                  {kHostile},
                                                  {"launch", "--" + kHostile, "x"},
                                                  {"launch", "--num_processes", kHostile, "x"},
                                                  {"launch", "--config_file", kHostile, "x"},
                                                  {"launch", "--cpu", kHostile},
                                                  {"test", "--config_file", kHostile},
                                                  {"manual", kHostile},
                                                  {"completion", kHostile}}) {
    EXPECT_NE(harmless_run(command).exit_code, 0) << command[0];
  }
}

TEST(HostileFiles, KeysAndValuesOfAConfigurationAreEscaped) {
  const TemporaryFolder folder;
  // As YAML and JSON may spell it; no file with the bytes themselves is read.
  const std::string in_json = HostileJson(kHostile).dump(-1, ' ', true), pair = "\\udb40\\udc41";
  std::string spelled = in_json;  // YAML has no surrogates
  spelled.replace(spelled.find(pair), pair.size(), "\\U000e0041");
  const auto configured = [&](const std::string& name, const std::string& text) {
    write_bytes(folder / name, text);
    return (folder / name).string();
  };
  const std::string base = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 2\n";
  const std::vector<std::string> quoted = {
      configured("key.yaml", base + spelled + ": 1\n"),
      configured("key.json", "{" + in_json + ": 1}"),
      configured("value.yaml", base + "mixed_precision: " + spelled + "\n"),
      configured("number.yaml", base + "num_processes: " + spelled + "\n"),
      configured("section.yaml", base + "fsdp_config: " + spelled + "\n"),
      configured("raw.json", "{\"" + kHostile + "\": }"),
  };
  const std::vector<std::string> named = {
      configured("tag.yaml", base + "num_processes: !<a\xe2\x80\x8b> 1\n"),
      configured("raw.yaml", kHostile + ": 1\n"),
      configured("broken.yaml", "num_processes: [\"\\u202e\"\n"),
      configured("bytes.yaml", "num_processes: \xff\x9b\n"),
  };
  const auto expect_refused = [](const std::string& path, const std::string& shown) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"launch", "--config_file", path, "true"},
                                                    {"env", "--config_file", path},
                                                    {"config", "update", "--config_file", path}}) {
      const auto result = harmless_run(command);
      EXPECT_EQ(result.exit_code, 1) << path;
      EXPECT_NE(result.errors.find(shown), std::string::npos) << path << result.errors;
    }
  };
  for (const auto& path : quoted) expect_refused(path, "\\");
  for (const auto& path : named) expect_refused(path, path);
  const auto taken =
      configured("taken.yaml", base + "main_process_ip: " + spelled + "\nmain_training_function: " + spelled +
                                   "\nmachine_rank: 1\nnum_processes: 2\nmain_process_port: 29500\nuse_cpu: true\n");
  const auto report = harmless_run({"env", "--config_file", taken});
  EXPECT_NE(report.output.find("\t- main_process_ip: " + kShown + "\n"), std::string::npos) << report.errors << report.output;
  // What is printed to be run is still what would be run.
  const std::string script = folder / "program";
  write_bytes(script, "#!/bin/sh\n");
  fs::permissions(script, fs::perms::owner_all);
  const auto plan = harmless_run({"launch", "--cpu", "--dry_run", "--config_file", taken, script, kHostile + "\xff'\\"});
  EXPECT_EQ(plan.exit_code, 0) << plan.errors;
  const size_t last = plan.output.find(script) + script.size();
  const auto shell = run_program({"bash", "-c", "printf %s" + plan.output.substr(last)});
  EXPECT_EQ(shell.output, kHostile + "\xff'\\") << plan.output;
}

TEST(HostileFiles, AnErrorMayBePrintedAnywhere) {
  EXPECT_EQ(std::string(CheckpointError("first line\n" + kHostile).what()),
            "first line\na\\x1b]0;owned\\x07 \\u009b31m \\u202e txt.exe\nforged" + kShown.substr(kShown.find("\\r")));
  EXPECT_EQ(escaped(escaped(kHostile + "\xc2\xed\xa0\x80")), kShown + "\\xc2\\xed\\xa0\\x80");
  EXPECT_EQ(escaped("漢漢", 4), "漢...");
  const RunOptions wrong{.environment = {{"WORLD_SIZE", kHostile}, {"RANK", kHostile}, {"ACCELERATE_LOG_LEVEL", kHostile}}};
  harmless_run({"launch", "--cpu", "true"}, wrong);
}

// --- What is no regular file.

class OddFiles : public ::testing::TestWithParam<std::string> {
 protected:
  /// Puts a FIFO without a writer, a device or a socket at `path`.
  void place(const fs::path& path) {
    fs::create_directories(path.parent_path());
    fs::remove(path);
    if (GetParam() == "a FIFO") {
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    } else if (GetParam() == "a device") {
      fs::create_symlink("/dev/zero", path);
    } else {
      sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
      path.string().copy(address.sun_path, sizeof address.sun_path - 1);
      const int made = ::socket(AF_UNIX, SOCK_STREAM, 0);
      ASSERT_EQ(::bind(made, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
      ::close(made);
    }
  }
  void expect_refused(const std::vector<std::string>& command, const fs::path& path) {
    const auto result = harmless_run(command);  // which does not wait for long
    EXPECT_EQ(result.exit_code, 1) << command[0];
    const std::string expected = path.string() + " is " + GetParam() + ", not a regular file.";
    EXPECT_NE((result.errors + result.output).find(expected), std::string::npos) << result.errors << result.output;
  }

  const TemporaryFolder folder_;
};

TEST_P(OddFiles, AreRefusedByEveryCommandThatReadsFiles) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin", "model.safetensors.index.json", ".metadata", "x.pt"}) {
    const fs::path folder = folder_ / name, path = folder / name;
    place(path);
    expect_refused({"inspect", path}, path);
    if (path.extension() == ".pt") continue;
    expect_refused({"merge-weights", folder, folder_ / "out"}, path);
    expect_refused({"estimate-memory", folder}, path);
  }
  EXPECT_FALSE(fs::exists(folder_ / "out"));
}

TEST_P(OddFiles, AreRefusedWhereAnIndexOrAConfigurationNamesThem) {
  const fs::path folder = folder_ / "sharded", shard = folder / "shard.safetensors", config = folder / "config.yaml";
  write_bytes(folder / "model.safetensors.index.json", R"({"weight_map":{"w":"shard.safetensors"}})");
  place(shard);
  expect_refused({"merge-weights", folder, folder_ / "out"}, shard);
  expect_refused({"estimate-memory", folder / "model.safetensors.index.json"}, shard);
  EXPECT_EQ(harmless_run({"inspect", folder}).exit_code, 0);
  place(config);
  expect_refused({"launch", "--config_file", config, "true"}, config);
  expect_refused({"env", "--config_file", config}, config);
  expect_refused({"config", "update", "--config_file", config}, config);
}

TEST_P(OddFiles, AreNotWaitedForInTheCacheOfTheHub) {
  place(folder_ / "models--model/refs/main");
  const auto result = harmless_run({"estimate-memory", "model"}, {.environment = {{"HF_HUB_CACHE", folder_.name()}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("no model of that name is in the hub cache"), std::string::npos) << result.errors;
}

INSTANTIATE_TEST_SUITE_P(Kinds, OddFiles, ::testing::Values("a FIFO", "a device", "a socket"),
                         [](const auto& kind) { return kind.param.substr(2); });

}  // namespace
}  // namespace accelerate::testing
