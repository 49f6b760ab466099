#include "distributed/hang_diagnosis.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>

#include "distributed/tensor_text.h"

namespace accelerate::detail {
namespace {

using Ranks = std::vector<size_t>;

std::string seconds(int64_t nanoseconds) {
  return fmt::format("{:.1f} s", static_cast<double>(std::max<int64_t>(0, nanoseconds)) * 1e-9);
}

/// A place that cannot be known has line 0.
std::string place_of(const Call& call) { return call.line == 0 ? "" : fmt::format(" at {}:{}", call.file.data(), call.line); }

std::string call_text(const Call& call) {
  if (call.dtype < 0) return call.name.data();
  std::string text = fmt::format("{} of {}[", call.name.data(), dtype_name(static_cast<at::ScalarType>(call.dtype)));
  const auto known = std::min<size_t>(static_cast<size_t>(call.dimensions), call.shape.size());
  for (size_t i = 0; i < known; ++i) text += (i > 0 ? ", " : "") + std::to_string(call.shape[i]);
  return text + (known < static_cast<size_t>(call.dimensions) ? ", ...]" : "]");
}

bool same_call(const Call& a, const Call& b) {
  return a.fingerprint == b.fingerprint || a.fingerprint == 0 || b.fingerprint == 0;
}

const Call* find_call(const RankReport& report, int64_t number) {
  if (!report.entry) return nullptr;
  const auto& calls = report.entry->calls;
  const auto found = std::find_if(calls.begin(), calls.end(), [&](const Call& call) { return call.number == number; });
  return found == calls.end() ? nullptr : &*found;
}

int64_t newest_number(const RankReport& report) {
  return report.entry && !report.entry->calls.empty() ? report.entry->calls.back().number : 0;
}

bool is_computing(const Call& call) { return call.ended == Call::kComputing; }

/// Whether a rank waits in call `number`, or has left it behind.
bool has_reached(const RankReport& report, int64_t number) {
  const Call* call = find_call(report, number);
  return call == nullptr ? newest_number(report) >= number : !is_computing(*call);
}

std::string busy_with(const RankEntry& entry) {
  return fmt::format("in {} for {}", describe(*entry.activity), seconds(entry.read - entry.activity->began));
}

/// Where a rank that is no longer there, or does not answer, was last seen.
std::string last_seen(const RankEntry& entry) {
  if (entry.activity) return "last seen " + busy_with(entry);
  if (entry.calls.empty()) return "it had made no call yet";
  const Call& call = entry.calls.back();
  if (is_computing(call)) return fmt::format("last seen computing in {}", describe(call));
  return call.ended == 0 ? fmt::format("last seen in {}, started {} ago", describe(call), seconds(entry.read - call.began))
                         : fmt::format("last seen in {}, which ended {} ago", describe(call), seconds(entry.read - call.ended));
}

std::string what_it_does(const RankEntry& entry) {
  if (const Call* call = waiting_call(entry))
    return fmt::format("waiting for {} in {}", seconds(entry.read - call->began), describe(*call));
  if (!entry.activity && !entry.calls.empty() && is_computing(entry.calls.back()))
    return fmt::format("computing for {} in {}", seconds(entry.read - entry.calls.back().began), describe(entry.calls.back()));
  const std::string before =
      entry.calls.empty() ? "it has made no call yet" : "its last call was " + describe(entry.calls.back());
  if (entry.activity) return busy_with(entry) + "; " + before;
  const int64_t since = entry.calls.empty() ? entry.joined : entry.calls.back().ended;
  return fmt::format("in user code for {}; {}", seconds(entry.read - since), before);
}

std::string describe_rank(const RankReport& report) {
  const auto& entry = report.entry;
  if (entry && entry->ending != Ending::none) {
    const char* how = entry->ending == Ending::finished ? "finished and left the group" : "failed and left the group";
    return fmt::format("{} {} ago; {}", how, seconds(entry->read - entry->ended),
                       entry->calls.empty() ? "it had made no call" : "its last call was " + describe(entry->calls.back()));
  }
  const std::string seen = entry ? "; " + last_seen(*entry) : "";
  switch (report.presence) {
    case Presence::gone:
      return (report.pid == 0 ? "dead, its connections are closed" : fmt::format("dead, its process {} has exited", report.pid)) +
             seen;
    case Presence::stopped:
      return fmt::format("not responding, its process {} is stopped{}", report.pid, seen);
    case Presence::silent:
      return "not responding to queries" + seen;
    case Presence::unknown:
      return "unknown, it could not be reached" + seen;
    case Presence::running:
      break;
  }
  return entry ? what_it_does(*entry) : fmt::format("running as process {}, but its call log cannot be read", report.pid);
}

/// "Rank 2", "Ranks 2, 3 and 5".
std::string name_ranks(const Ranks& ranks, const RankNames& names) {
  std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]) + names.aside(ranks[i]);
  }
  return text;
}

/// "Rank 2 is dead. ", or nothing when that applies to no rank.
template <class Condition>
std::string sentence_on(const std::vector<RankReport>& reports, const RankNames& names, const std::string& of_one,
                        const std::string& of_several, Condition applies) {
  Ranks ranks;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (applies(reports[rank])) ranks.push_back(rank);
  }
  return ranks.empty() ? "" : name_ranks(ranks, names) + (ranks.size() == 1 ? of_one : of_several);
}

bool is_there(const RankReport& report) {
  return report.presence == Presence::running && report.entry && report.entry->ending == Ending::none;
}

/// "reduce of float32[2] by sum, tensor 1 of 2 in {a:t,b:t,}".
std::string all_that_agrees(const Call& call) {
  return call_text(call) + (call.how[0] == '\0' ? "" : " ") + call.how.data() + (call.nested[0] == '\0' ? "" : ", ") +
         call.nested.data();
}

std::string describe_mismatch(const std::vector<RankReport>& reports, int64_t number, const RankNames& names) {
  std::string text = fmt::format("Call {} is not the same on all ranks:", number);
  bool nested = false;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const char* comma = text.ends_with(':') ? "" : ",";
    if (const Call* call = find_call(reports[rank], number)) {
      nested = nested || call->nested[0] != '\0';
      text += fmt::format("{} {}{} on rank {}{}", comma, all_that_agrees(*call), place_of(*call), rank, names.aside(rank));
    } else if (newest_number(reports[rank]) > number) {
      text += fmt::format("{} no longer recorded on rank {}{}", comma, rank, names.aside(rank));
    }
  }
  text += ". All ranks must make the same calls in the same order, with the same shapes and dtypes. ";
  return nested ? text + "Nested data must have the same structure and names (t is a tensor). " : text;
}

std::string headline(const std::vector<RankReport>& reports, int64_t mismatch, const RankNames& names) {
  const auto say = [&](const std::string& of_one, const std::string& of_several, auto applies) {
    return sentence_on(reports, names, of_one, of_several, applies);
  };
  std::string diagnosis = say(" is dead. ", " are dead. ", [](const RankReport& r) {
    return r.presence == Presence::gone && (!r.entry || r.entry->ending == Ending::none);
  });
  diagnosis += say(" has finished and left the group. ", " have finished and left the group. ",
                   [](const RankReport& r) { return r.entry && r.entry->ending == Ending::finished; });
  diagnosis +=
      say(" has failed. ", " have failed. ", [](const RankReport& r) { return r.entry && r.entry->ending == Ending::failed; });
  // With one of them gone, the others are no longer waited for.
  const bool out = !diagnosis.empty();
  diagnosis += say(" is not responding. ", " are not responding. ", [](const RankReport& r) {
    return (r.presence == Presence::stopped || r.presence == Presence::silent) && (!r.entry || r.entry->ending == Ending::none);
  });
  if (mismatch != 0) diagnosis += describe_mismatch(reports, mismatch, names);
  if (out) return diagnosis;
  int64_t front = 0;
  for (const auto& report : reports) {
    const Call* call = is_there(report) ? waiting_call(*report.entry) : nullptr;
    if (call != nullptr) front = std::max(front, call->number);
  }
  const std::string call = fmt::format(" not reached call {}. ", front);
  diagnosis += say(" has" + call, " have" + call, [&](const RankReport& r) { return is_there(r) && !has_reached(r, front); });
  diagnosis += say(" could not be reached. ", " could not be reached. ", [](const RankReport& r) {
    return r.presence == Presence::unknown && (!r.entry || r.entry->ending == Ending::none);
  });
  if (!diagnosis.empty()) return diagnosis;
  // A rank may have failed in a send or a receive, of which only two ranks know.
  return front == 0 ? "No rank is in a collective of the group. " : "All ranks have reached it. ";
}

}  // namespace

std::string describe(const Call& call) {
  // What a collective of the library's own is for: "for blocks.3".
  const std::string_view how = call.how.data();
  return fmt::format("{}{}{} (call {}){}", call_text(call), how.starts_with("for ") ? " " : "",
                     how.starts_with("for ") ? how : std::string_view(), call.number, place_of(call));
}

std::string describe(const Activity& activity) {
  const std::string name = activity.name.data(), place = activity.place.data();
  if (activity.line != 0) return fmt::format("{} at {}:{}", name, place, activity.line);
  return place.empty() ? name : name + " of " + place;
}

const Call* waiting_call(const RankEntry& entry) {
  const auto found = std::find_if(entry.calls.rbegin(), entry.calls.rend(), [](const Call& call) { return call.ended == 0; });
  return found == entry.calls.rend() ? nullptr : &*found;
}

int64_t mismatched_call(const std::vector<RankReport>& reports) {
  int64_t first = 0;
  for (const auto& report : reports) {
    if (!report.entry) continue;
    for (const Call& call : report.entry->calls) {
      if (first != 0 && call.number >= first) break;
      const auto differs = [&](const RankReport& other) {
        const Call* theirs = find_call(other, call.number);
        return theirs != nullptr && !same_call(call, *theirs);
      };
      if (std::any_of(reports.begin(), reports.end(), differs)) first = call.number;
    }
  }
  return first;
}

std::string diagnose(const std::vector<RankReport>& reports, int64_t mismatch, const RankNames& names) {
  std::string diagnosis = headline(reports, mismatch != 0 ? mismatch : mismatched_call(reports), names);
  diagnosis.back() = '\n';
  for (size_t rank = 0; rank < reports.size(); ++rank)
    diagnosis += fmt::format("  - Rank {}{}: {}\n", rank, names.aside(rank), describe_rank(reports[rank]));
  diagnosis.pop_back();
  return diagnosis;
}

std::string gist_of(const std::vector<RankReport>& reports) {
  std::string gist = headline(reports, mismatched_call(reports), {});
  for (const auto& report : reports) {
    const Call* call = report.entry ? waiting_call(*report.entry) : nullptr;
    gist += fmt::format(" {}", call == nullptr ? 0 : call->number);
  }
  return gist;
}

}  // namespace accelerate::detail
