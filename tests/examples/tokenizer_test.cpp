#include <accelerate/core/error.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "examples/models/tokenizer.h"
#include "examples/models/utf8.h"
#include "support/error_text.h"
#include "support/paths.h"
#include "support/together.h"

namespace {

using accelerate::testing::message_of;

using models::SplitPattern;
using models::Tokenizer;
using nlohmann::json;

json tokenizer_file(const std::string& name) {
  return json::parse(std::ifstream(std::string(kProjectFolder) + "/tests/golden/models/" + name + "/tokenizer.json"));
}

Tokenizer tokenizer_of(const json& content) {
  TemporaryFolder folder;
  std::ofstream(folder / "tokenizer.json") << content;
  return Tokenizer((folder / "tokenizer.json").string());
}

std::vector<std::string> pieces(const std::string& pattern, const std::string& text) {
  const auto points = models::code_points(text);
  std::vector<std::string> result;
  for (const auto& [first, last] : SplitPattern(pattern).matches(points.codes)) {
    result.push_back(text.substr(points.offsets[first], points.offsets[last] - points.offsets[first]));
  }
  return result;
}

TEST(SplitPattern, TheFirstBranchThatFitsIsTaken) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("a|ab", "abab"), Pieces({"a", "a"}));
  EXPECT_EQ(pieces("ab|a", "abab"), Pieces({"ab", "ab"}));
}

TEST(SplitPattern, ItGoesBackIntoRepetitionsAndGroups) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces("a*ab", "aaab"), Pieces({"aaab"}));
  EXPECT_EQ(pieces("(?:a|ab)c", "abc ac"), Pieces({"abc", "ac"}));
  EXPECT_EQ(pieces("x(?:ab)?abc", "xabc xababc"), Pieces({"xabc", "xababc"}));
  EXPECT_EQ(pieces("[a-c]{2,3}", "abcabcab a"), Pieces({"abc", "abc", "ab"}));
  EXPECT_EQ(pieces("a{2}", "aaaaa"), Pieces({"aa", "aa"}));
  EXPECT_EQ(pieces("a(?=b)", "aab"), Pieces({"a"}));
  EXPECT_EQ(pieces("(?i:it's)", "IT'S it'ſ"), Pieces({"IT'S", "it'ſ"}));
  EXPECT_EQ(pieces("[^\\P{L}x]+", "abxé1"), Pieces({"ab", "é"}));
  EXPECT_EQ(pieces("[\\-\\]]+", "a-]b"), Pieces({"-]"}));
  EXPECT_EQ(pieces("a?", "baab"), Pieces({"a", "a"})) << "matches of nothing are passed over";
}

TEST(SplitPattern, WhatIsNotUnderstoodIsNamedWithItsPlace) {
  for (const char* pattern : {"a.b", "^a", "a$", "(a", "a)", "[a", "a++", "a{", "a{3,2}", "(?<n>a)", "(?:a)+", "\\w", "\\p{Lu}",
                              "*", "[z-a]", "[[a]]", "a\\", "\\d"}) {
    const auto text = message_of<accelerate::Error>([&] { SplitPattern{pattern}; });
    EXPECT_NE(text.find(std::string("The pattern ") + pattern + " has at character"), std::string::npos)
        << pattern << ": " << text;
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += '(';
  EXPECT_NE(message_of<accelerate::Error>([&] { SplitPattern{deep}; }).find("deeper than 50"), std::string::npos);
}

TEST(Tokenizer, ALongTextWithoutASpaceAndOneOfSpacesAloneAreEncoded) {
  for (const char* name : {"gpt2", "llama3"}) {
    const Tokenizer tokenizer = tokenizer_of(tokenizer_file(name));
    for (const std::string& unit : {std::string("ab"), std::string(" "), std::string("\n "), std::string("字")}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    }
  }
}

TEST(Tokenizer, MergesOfOlderFilesAreTextsWithASpace) {
  json file = tokenizer_file("gpt2");
  const std::string text = "There were tokens";
  const auto wanted = tokenizer_of(file).encode(text);
  for (auto& merge : file["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(tokenizer_of(file).encode(text), wanted);
  file["model"]["merges"][0] = "together";
  EXPECT_NE(message_of<accelerate::Error>([&] { tokenizer_of(file); }).find("'together'"), std::string::npos);
}

TEST(Tokenizer, TokensBehindATextAreAddedToo) {
  json file = tokenizer_file("llama3");
  auto& single = file["post_processor"]["processors"][1]["single"];
  single.push_back(single[0]);
  const auto ids = tokenizer_of(file).encode("x");
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids.front(), ids.back());
}

TEST(Tokenizer, FilesOfOtherKindsAreRefusedByName) {
  const auto refusal = [](const std::function<void(json&)>& change) {
    json file = tokenizer_file("llama3");
    change(file);
    return message_of<accelerate::Error>([&] { tokenizer_of(file); });
  };
  const auto expect_says = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find("tokenizer"), std::string::npos) << text;
  };
  expect_says(refusal([](json& file) { file["normalizer"] = {{"type", "NFC"}}; }), "'NFC'");
  expect_says(refusal([](json& file) { file["model"]["type"] = "WordPiece"; }), "'WordPiece'");
  expect_says(refusal([](json& file) { file["model"]["byte_fallback"] = true; }), "SentencePiece");
  expect_says(refusal([](json& file) { file["model"]["unk_token"] = "<unk>"; }), "unk_token");
  expect_says(refusal([](json& file) { file["model"]["vocab"]["a"] = -1; }), "the id -1");
  expect_says(refusal([](json& file) { file["model"]["vocab"]["a"] = 1'000'000'000'000; }), "the id 1000000000000");
  expect_says(refusal([](json& file) { file["model"]["merges"].push_back({"qq", "zz"}); }), "'qq'");
  expect_says(refusal([](json& file) { file["pre_tokenizer"] = nullptr; }), "no pre_tokenizer");
  expect_says(refusal([](json& file) { file["pre_tokenizer"] = {{"type", "Metaspace"}}; }), "'Metaspace'");
  expect_says(refusal([](json& file) { file["pre_tokenizer"]["pretokenizers"].erase(1); }), "ByteLevel");
  expect_says(refusal([](json& file) { file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }), "'Removed'");
  expect_says(refusal([](json& file) { file["decoder"] = nullptr; }), "decoder");
  expect_says(refusal([](json& file) { file["post_processor"] = {{"type", "BertProcessing"}}; }), "'BertProcessing'");
  expect_says(refusal([](json& file) { file["added_tokens"][0]["single_word"] = true; }), "single word");
  expect_says(refusal([](json& file) { file.erase("model"); }), "is not a tokenizer");
  expect_says(refusal([](json& file) { file = json::array(); }), "is not a tokenizer");
  expect_says(message_of<accelerate::Error>([] { Tokenizer("/no/such/tokenizer.json"); }), "cannot be opened");
}

TEST(Tokenizer, BytesThatAreNoTextAndIdsThatAreNoTokensAreRefused) {
  const Tokenizer tokenizer = tokenizer_of(tokenizer_file("gpt2"));
  for (const std::string text : {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xc0\x80"}) {
    EXPECT_NE(message_of<accelerate::Error>([&] { tokenizer.encode(text); }).find("at byte 2"), std::string::npos);
  }
  EXPECT_NE(message_of<accelerate::Error>([&] { tokenizer.decode({1, 320}); }).find("the id 320"), std::string::npos);
  EXPECT_NE(message_of<accelerate::Error>([&] { tokenizer.decode({-1}); }).find("the id -1"), std::string::npos);
}

}  // namespace
