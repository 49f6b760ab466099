#include "formats/weight_index.h"

#include <accelerate/core/error.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

[[noreturn]] void bad_index(const std::string& file, const std::string& what) {
  throw CheckpointError(file + " is not the index of a sharded checkpoint: " + escaped(what, kLongestQuote) + ".");
}

/// Keeps what an index needs and passes over the rest, without building it in memory.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  IndexReader(const std::string& file, WeightIndex& index) : file_(file), index_(index) {}

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ == 2 && section_ == "metadata" && key_ == "total_size") index_.total_size = number;
    return other();
  }
  bool string(string_t& text) override {
    if (depth_ == 1) bare_.emplace_back(section_, text);
    if (depth_ == 2 && section_ == "weight_map") index_.weight_map.emplace_back(key_, text);
    if (depth_ == 0) bad_index(file_, "it is not an object");
    return true;
  }
  bool start_object(size_t) override {
    if (++depth_ == 2 && section_ == "weight_map") {
      if (has_map_) bad_index(file_, "it has two weight maps");
      has_map_ = true;
    }
    if (depth_ > 2 && section_ == "weight_map") bad_index(file_, "the file of " + key_ + " is not a string");
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) section_ = key;
    if (depth_ == 2) key_ = key;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    other();
    ++depth_;
    return true;
  }
  bool end_array() override { return end_object(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    bad_index(file_, "it is invalid JSON at byte " + std::to_string(position));
  }

  void finish() {
    if (!has_map_) index_.weight_map = std::move(bare_);
    if (index_.weight_map.empty()) bad_index(file_, "it has no weight map");
  }

 private:
  /// A value that is not text: fine anywhere but in the map.
  bool other() {
    if (depth_ == 0) bad_index(file_, "it is not an object");
    if (depth_ == 2 && section_ == "weight_map") bad_index(file_, "the file of " + key_ + " is not a string");
    return true;
  }

  const std::string& file_;
  WeightIndex& index_;
  std::deque<std::pair<std::string, std::string>> bare_;
  std::string section_, key_;
  int depth_ = 0;
  bool has_map_ = false;
};

void require_sound_map(const WeightIndex& index, const std::string& file) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, shard] : index.weight_map) {
    if (!names.insert(name).second) bad_index(file, "it has a duplicate entry for " + name);
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos)
      bad_index(file, name + " is mapped to '" + shard + "', which is not a file name in the same folder");
  }
}

}  // namespace

std::vector<std::string> WeightIndex::files() const {
  std::vector<std::string> files;
  std::unordered_set<std::string_view> seen;
  for (const auto& item : weight_map) {
    if (seen.insert(item.second).second) files.push_back(item.second);
  }
  return files;
}

WeightIndex read_weight_index(const ByteSource& source) {
  const std::string text = source.text(0, source.size());
  WeightIndex index;
  IndexReader reader(source.name(), index);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  reader.finish();
  require_sound_map(index, source.name());
  return index;
}

std::string write_weight_index(const WeightIndex& index) {
  nlohmann::json json;  // sorts its keys, as Python is told to
  json["metadata"] = nlohmann::json::object();
  if (index.total_size) json["metadata"]["total_size"] = *index.total_size;
  json["weight_map"] = nlohmann::json::object();
  for (const auto& [name, file] : index.weight_map) json["weight_map"][name] = file;
  return json.dump(2, ' ', true) + "\n";
}

}  // namespace accelerate::detail
