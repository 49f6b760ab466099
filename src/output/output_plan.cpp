#include <accelerate/output/output_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include <accelerate/core/error.h>

namespace accelerate {
namespace {

std::optional<int> whole_number(std::string_view text) {
  int number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0) return {};
  return number;
}

[[noreturn]] void refuse_tee(const std::string& tee) {
  throw UsageError(
      fmt::format("--tee is '{}'; give 0 (nothing), 1 (stdout), 2 (stderr) or 3 (both), "
                  "or one of them for each local rank, as in 0:3,1:0.",
                  tee));
}

int streams_from(std::string_view text, const std::string& tee) {
  const auto number = whole_number(text);
  if (!number || text.size() != 1 || *number > 3) refuse_tee(tee);
  return *number;
}

// Local ranks that are not named write no file, and names of ranks that this launch lacks mean nothing: as in torchrun.
std::vector<int> streams_of_ranks(const std::string& tee, int processes) {
  std::vector<int> streams(static_cast<size_t>(processes), 0);
  if (tee.find(':') == std::string::npos) {
    std::fill(streams.begin(), streams.end(), streams_from(tee, tee));
    return streams;
  }
  for (size_t begin = 0; begin <= tee.size();) {
    const size_t end = std::min(tee.find(',', begin), tee.size());
    const std::string_view part = std::string_view(tee).substr(begin, end - begin);
    const size_t colon = std::min(part.find(':'), part.size());
    const auto rank = whole_number(part.substr(0, colon));
    if (!rank || colon == part.size()) refuse_tee(tee);
    const int chosen = streams_from(part.substr(colon + 1), tee);
    if (*rank < processes) streams[static_cast<size_t>(*rank)] = chosen;
    begin = end + 1;
  }
  return streams;
}

std::string fill_template(std::string text, const std::map<std::string, std::string>& values) {
  for (size_t at = text.find("${"); at != std::string::npos; at = text.find("${", at)) {
    const size_t end = text.find('}', at);
    if (end == std::string::npos) break;
    const auto value = values.find(text.substr(at + 2, end - at - 2));
    if (value == values.end()) {
      at = end;  // like torchrun's, an unknown name stays as it is
      continue;
    }
    text.replace(at, end - at + 1, value->second);
    at += value->second.size();
  }
  return text;
}

}  // namespace

bool OutputPlan::has_files() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.stdout_to_file || rank.stderr_to_file; });
}

std::string RankOutputPlan::line_prefix() const { return fill_template(prefix, {{"rank", std::to_string(rank)}}); }

OutputPlan plan_output(const std::string& tee, const std::string& log_dir, const std::string& role, int first_rank, int processes,
                       const Environment& environment) {
  const std::vector<int> streams = streams_of_ranks(tee, processes);
  const bool tees = std::any_of(streams.begin(), streams.end(), [](int chosen) { return chosen != 0; });
  const std::string prefix = environment("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE").value_or("[${role_name}${local_rank}]:");
  OutputPlan plan = {.ranks = {}, .log_dir = log_dir};
  for (size_t local_rank = 0; local_rank < streams.size(); ++local_rank) {
    // A folder without --tee asks for files and for nothing else.
    const int chosen = tees || log_dir.empty() ? streams[local_rank] : 3;
    const int rank = first_rank + static_cast<int>(local_rank);
    const std::map<std::string, std::string> values = {{"role_name", role}, {"local_rank", std::to_string(local_rank)}};
    plan.ranks.push_back({.rank = rank,
                          .stdout_to_file = (chosen & 1) != 0,
                          .stderr_to_file = (chosen & 2) != 0,
                          .prefix = tees ? fill_template(prefix, values) : ""});
  }
  return plan;
}

}  // namespace accelerate
