#include "hosts/host_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <string_view>

#include <accelerate/core/error.h>

namespace accelerate::detail {
namespace {

constexpr int kMostSlots = 1 << 16;
constexpr size_t kMostHosts = 1 << 14;
constexpr const char* kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";

std::optional<int> slot_number(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || problem != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// What begins with a hyphen would be an option of ssh, and what a shell or pdsh reads otherwise is no name of a host.
bool is_name(const std::string& text) {
  return !text.empty() && text.front() != '-' && text.find_first_not_of(kNameCharacters) == std::string::npos;
}

bool is_login(const std::string& text) {
  const size_t at = text.find('@');
  return at == std::string::npos ? is_name(text) : is_name(text.substr(0, at)) && is_name(text.substr(at + 1));
}

Host parse_line(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  Host host;
  std::string slots, more;
  words >> host.login >> slots >> more;
  if (!is_login(host.login)) {
    throw ConfigError(fmt::format(
        "{}: '{}' is no name of a host; give a name or an IPv4 address, perhaps with a user: user@worker-1.", where, host.login));
  }
  if (!slots.starts_with("slots=")) {
    throw ConfigError(
        fmt::format("{}: '{}' does not say how many slots the host has; write '{} slots=N', one process for each slot.", where,
                    line, host.login));
  }
  if (!more.empty() && more.front() != '#') {
    throw ConfigError(fmt::format("{}: '{}' is not understood after '{} {}'; a line has a host and its slots.", where, more,
                                  host.login, slots));
  }
  const auto number = slot_number(std::string_view(slots).substr(6));
  if (!number || *number < 1 || *number > kMostSlots)
    throw ConfigError(fmt::format("{}: '{}' of host '{}'; give a number from 1 to {}.", where, slots, host.login, kMostSlots));
  host.slots = *number;
  host.used.resize(static_cast<size_t>(host.slots));
  std::iota(host.used.begin(), host.used.end(), 0);
  return host;
}

/// One part of a filter.
struct HostChoice {
  Host* host;
  /// Without duplicates. None: all of them.
  std::optional<std::vector<int>> slots = {};
};

std::vector<int> slots_in(const std::string& list, const Host& host, const std::string& flag) {
  std::vector<int> slots;
  for (const std::string& text : parts_of(list, ',')) {
    const auto slot = slot_number(text);
    if (!slot)
      throw UsageError(fmt::format("{} has the slot '{}' of host '{}'; give numbers from 0, as in {}:0,2.", flag, text,
                                   host.name(), host.name()));
    if (*slot >= host.slots) {
      throw UsageError(fmt::format("{} has slot {} of host '{}', but the hostfile gives it {} slot(s), from 0 to {}.", flag,
                                   *slot, host.name(), host.slots, host.slots - 1));
    }
    if (std::find(slots.begin(), slots.end(), *slot) == slots.end()) slots.push_back(*slot);
  }
  return slots;
}

HostChoice parse_choice(const std::string& part, std::vector<Host>& hosts, const std::string& flag, const std::string& filter) {
  if (part.empty()) {
    throw UsageError(
        fmt::format("{} is '{}', with an empty part; give hosts separated by @, as in worker-0@worker-1:0,2.", flag, filter));
  }
  const size_t colon = part.find(':');
  const std::string name = part.substr(0, colon);
  const auto found = std::find_if(hosts.begin(), hosts.end(), [&](const Host& host) { return host.name() == name; });
  if (found == hosts.end())
    throw UsageError(
        fmt::format("{} names the host '{}', which is not in the hostfile; it has {}.", flag, name, names_of(hosts)));
  if (colon == std::string::npos) return {&*found};
  return {&*found, slots_in(part.substr(colon + 1), *found, flag)};
}

void exclude(const HostChoice& choice) {
  if (!choice.slots) return choice.host->used.clear();
  for (const int slot : *choice.slots) std::erase(choice.host->used, slot);
}

}  // namespace

bool Host::is_filtered() const {
  std::vector<int> all(static_cast<size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  return used != all;
}

std::vector<Host> parse_host_file(const std::string& text, const std::string& path) {
  std::vector<Host> hosts;
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    Host host = parse_line(line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin), where);
    const auto same = [&](const Host& other) { return other.name() == host.name(); };
    if (std::any_of(hosts.begin(), hosts.end(), same)) {
      throw ConfigError(fmt::format("{}: the host '{}' is named for the second time; give it all of its slots in one line.",
                                    where, host.name()));
    }
    hosts.push_back(std::move(host));
    if (hosts.size() > kMostHosts) throw ConfigError(fmt::format("{}: more than {} hosts.", where, kMostHosts));
  }
  if (hosts.empty()) throw ConfigError(fmt::format("{} names no host; write a line 'NAME slots=N' for each.", path));
  return hosts;
}

std::vector<Host> filter_hosts(std::vector<Host> hosts, const std::optional<std::string>& included,
                               const std::optional<std::string>& excluded) {
  const bool includes = included && !included->empty();
  const bool excludes = excluded && !excluded->empty();
  if (includes && excludes) {
    throw UsageError(
        "--deepspeed_inclusion_filter and --deepspeed_exclusion_filter cannot be used together: choose one of them.");
  }
  if (!includes && !excludes) return hosts;
  const std::string flag = includes ? "--deepspeed_inclusion_filter" : "--deepspeed_exclusion_filter";
  const std::string& filter = includes ? *included : *excluded;
  std::vector<HostChoice> choices;
  for (const std::string& part : parts_of(filter, '@')) choices.push_back(parse_choice(part, hosts, flag, filter));
  if (includes) {
    for (Host& host : hosts) host.used.clear();
  }
  for (const HostChoice& choice : choices) {
    if (excludes) {
      exclude(choice);
    } else if (choice.slots) {
      choice.host->used = *choice.slots;
    } else {
      choice.host->used.resize(static_cast<size_t>(choice.host->slots));
      std::iota(choice.host->used.begin(), choice.host->used.end(), 0);
    }
  }
  std::erase_if(hosts, [](const Host& host) { return host.used.empty(); });
  if (hosts.empty()) throw UsageError(fmt::format("{} is '{}' and leaves no slot of the hostfile.", flag, filter));
  return hosts;
}

std::string names_of(const std::vector<Host>& hosts) {
  constexpr size_t most = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(hosts.size(), most); ++i) names.push_back(hosts[i].name());
  if (hosts.size() > most) names.push_back(fmt::format("{} more", hosts.size() - most));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace accelerate::detail
