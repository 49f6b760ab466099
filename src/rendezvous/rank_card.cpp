#include "rendezvous/rank_card.h"

#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <vector>

#include "core/escaped.h"
#include "core/utf8.h"

namespace accelerate::detail {
namespace {

constexpr std::string_view kCardVersion = "accelerate rendezvous 1";
constexpr size_t kLongestField = 200;

/// One line: what comes from elsewhere is shown on a terminal. The same of what it has made already.
std::string as_field(std::string_view text) { return std::string(utf8_prefix(escaped(text), kLongestField)); }

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines(1);
  for (const char c : text) c == '\n' ? lines.emplace_back().shrink_to_fit() : lines.back().push_back(c);
  return lines;
}

bool read_number(const std::string& text, int& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

std::string host_of_card() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

RankCard RankCard::of_this_process(const LaunchEnvironment& me, std::string nonce) {
  return {.rank = me.process_index,
          .num_processes = me.num_processes,
          .run_id = as_field(me.run_id),
          .program = as_field(::program_invocation_short_name),
          .host = as_field(host_of_card()),
          .pid = ::getpid(),
          .nonce = std::move(nonce)};
}

std::optional<RankCard> RankCard::parse(const std::string& text) {
  const auto lines = split_lines(text);
  if (lines.size() != 9 || lines[0] != kCardVersion) return std::nullopt;
  RankCard card{.run_id = as_field(lines[3]),
                .program = as_field(lines[4]),
                .host = as_field(lines[5]),
                .nonce = as_field(lines[7]),
                .proof = as_field(lines[8])};
  if (!read_number(lines[1], card.rank) || !read_number(lines[2], card.num_processes) || !read_number(lines[6], card.pid))
    return std::nullopt;
  return card;
}

std::string RankCard::to_text() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", kCardVersion, rank, num_processes, run_id, program, host, pid, nonce,
                     proof);
}

bool same_job(const RankCard& left, const RankCard& right) {
  return left.num_processes == right.num_processes && left.run_id == right.run_id &&
         (!left.run_id.empty() || left.program == right.program);
}

std::string describe(const RankCard& card) {
  return fmt::format("rank {} of {} of program {}, {} (process {} on {})", card.rank, card.num_processes, card.program,
                     card.run_id.empty() ? "no run id" : "run id " + card.run_id, card.pid, card.host);
}

}  // namespace accelerate::detail
