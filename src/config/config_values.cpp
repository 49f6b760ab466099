#include "config/config_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include "config/config_schema.h"
#include "core/closest_name.h"

namespace accelerate::detail {
namespace {

using nlohmann::json;

/// `file:12: ` of a key, if its line is known.
std::string place_of(const ConfigDocument& document, const std::string& path, std::string_view key) {
  const auto line = document.lines.find(std::string(key));
  return line == document.lines.end() ? path + ": " : fmt::format("{}:{}: ", path, line->second);
}

std::string shown_value(const json& value) { return shown(value.is_string() ? value.get<std::string>() : value.dump()); }

bool is_flag_text(const std::string& text) {
  try {
    parse_flag(text, "");
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool is_integer_text(const std::string& text) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

bool is_scalar(const json& value) { return value.is_string() || value.is_number() || value.is_boolean() || value.is_null(); }

bool has_type(ConfigType type, const json& value) {
  switch (type) {
    case ConfigType::text:
      return value.is_string() || value.is_number();
    case ConfigType::integer:
      return value.is_number_integer() || (value.is_string() && is_integer_text(value.get<std::string>()));
    case ConfigType::flag:
    case ConfigType::flag_or_text:
      return value.is_boolean() || (value.is_string() && is_flag_text(value.get<std::string>())) || value == 0 || value == 1;
    case ConfigType::mapping:
      return value.is_object();
    case ConfigType::list:
      return value.is_array() && std::all_of(value.begin(), value.end(), is_scalar);
  }
  return false;
}

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

bool is_choice(const ConfigKey& key, const json& value) {
  const auto choices = config_choices(key);
  if (choices.empty()) return true;
  if (!value.is_string()) return false;
  // Python's launcher ignores the case of a precision.
  const std::string text = key.name == "mixed_precision" ? lower_case(value.get<std::string>()) : value.get<std::string>();
  return std::find(choices.begin(), choices.end(), text) != choices.end();
}

/// YAML reads an unquoted `no` as false, and Python writes that back: where `no` is a word, false is that word.
void restore_no(json& values, const char* key, const char* word) {
  const auto found = values.find(key);
  if (found != values.end() && *found == false) *found = word;
}

[[noreturn]] void refuse_value(const ConfigKey& key, const json& value, const std::string& place) {
  const std::string closest = value.is_string() ? closest_hint(shown(value.get<std::string>()), config_choices(key)) : "";
  throw ConfigError(fmt::format("{}{} is {}; expected {}{}.", place, key.name, shown_value(value), expected_of(key), closest));
}

void bring_up_to_date(json& values) {
  restore_no(values, "distributed_type", "NO");
  restore_no(values, "mixed_precision", "no");
  restore_no(values, "dynamo_backend", "NO");
  if (const auto fp16 = values.find("fp16"); fp16 != values.end()) {
    const bool wanted = *fp16 == true || *fp16 == 1 || (fp16->is_string() && lower_case(*fp16) == "true");
    if (!values.contains("mixed_precision")) values["mixed_precision"] = wanted ? json("fp16") : json(nullptr);
    values.erase("fp16");
  }
  if (const auto backend = values.find("dynamo_backend"); backend != values.end()) {
    const json configured = *backend == "NO" ? json::object() : json{{"dynamo_backend", *backend}};
    values.erase("dynamo_backend");
    values["dynamo_config"] = configured;
  }
}

std::span<const ConfigKey> schema_of(const ConfigDocument& document, const std::string& path) {
  const ConfigKey& key = *find_config_key(local_config_keys(), "compute_environment");
  const auto found = document.values.find(key.name);
  if (found == document.values.end() || found->is_null()) return local_config_keys();
  if (!is_choice(key, *found)) refuse_value(key, *found, place_of(document, path, key.name));
  return *found == "AMAZON_SAGEMAKER" ? sagemaker_config_keys() : local_config_keys();
}

void check_known(const ConfigDocument& document, std::span<const ConfigKey> keys, const std::string& path) {
  std::vector<std::string> unknown, names;
  for (const auto& item : document.values.items()) {
    if (!find_config_key(keys, item.key())) unknown.push_back(item.key());
  }
  if (unknown.empty()) return;
  for (const ConfigKey& key : keys) names.emplace_back(key.name);
  const std::string& first = unknown.front();
  std::string others;
  for (size_t i = 1; i < std::min<size_t>(unknown.size(), 6); ++i)
    others += (i > 1 ? ", " : " Also unknown: ") + shown(unknown[i]);
  const bool elsewhere = find_config_key(local_config_keys(), first) || find_config_key(sagemaker_config_keys(), first);
  const auto closest = closest_name(shown(first), names);
  const std::string hint = elsewhere ? "; it belongs to another compute_environment"
                           : closest ? fmt::format("; the closest is {}", *closest)
                                     : "";
  throw ConfigError(fmt::format("{}unknown key {}{}.{}{}", place_of(document, path, first), shown(first), hint, others,
                                others.empty() ? "" : "."));
}

json default_of(const ConfigKey& key, const ConfigDocument& document, const std::string& path) {
  if (key.fallback.empty()) {
    throw ConfigError(fmt::format("{}the key {} is missing; give it {}.", place_of(document, path, key.name), key.name,
                                  key.choices.empty() ? "a value" : expected_of(key)));
  }
  // One process without distributed training; otherwise the number must come from the command line.
  if (key.name == "num_processes" && document.values.value("distributed_type", json()) == "NO" &&
      !document.values.contains("num_processes")) {
    return 1;
  }
  return json::parse(key.fallback);
}

}  // namespace

nlohmann::json complete_values(ConfigDocument document, const std::string& path) {
  bring_up_to_date(document.values);
  const auto keys = schema_of(document, path);
  check_known(document, keys, path);
  json fields = json::object();
  for (const ConfigKey& key : keys) {
    const auto given = document.values.find(key.name);
    if (given == document.values.end() || given->is_null()) {
      fields[std::string(key.name)] = default_of(key, document, path);
      continue;
    }
    if (!has_type(key.type, *given) || !is_choice(key, *given)) refuse_value(key, *given, place_of(document, path, key.name));
    const bool is_plain_flag = key.type == ConfigType::flag && !given->is_boolean();
    fields[std::string(key.name)] =
        is_plain_flag ? json(parse_flag(given->is_string() ? given->get<std::string>() : given->dump(), "")) : *given;
  }
  return fields;
}

}  // namespace accelerate::detail
