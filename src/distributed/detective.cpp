#include "distributed/detective.h"

#include <accelerate/console/progress.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "rendezvous/bounded.h"
#include "rendezvous/without_signals.h"

namespace accelerate::detail {
namespace {

using namespace std::chrono_literals;

/// How often a watcher looks at its own rank, at most.
constexpr std::chrono::milliseconds kTick = 1s;
/// How long answers of other hosts are waited for; they look at the store once a second.
constexpr std::chrono::milliseconds kAnswers = 3s;
/// How long a change must last before it is reported: a rank that has just arrived continues at once.
constexpr std::chrono::milliseconds kLasting = 1s;
/// How often other hosts are asked whether anything has changed.
constexpr std::chrono::milliseconds kAskAgain = 5s;
/// How long the kernel may take to show that a process whose connections are closed is dead.
constexpr std::chrono::milliseconds kCause = 1s;

bool is_out(const RankReport& report) {
  return report.presence == Presence::gone || (report.entry && report.entry->ending != Ending::none);
}

void enter_into(std::vector<RankReport>& reports, const NumberedReports& found) {
  for (const auto& [rank, report] : found) {
    if (rank >= 0 && rank < static_cast<int64_t>(reports.size())) reports[static_cast<size_t>(rank)] = report;
  }
}

/// Whether the reports hold what can break a connection.
bool names_a_cause(const std::vector<RankReport>& reports) {
  return std::any_of(reports.begin(), reports.end(), [](const RankReport& report) {
    return is_out(report) || report.presence == Presence::silent || report.presence == Presence::unknown;
  });
}

}  // namespace

/// The ranks that run where this one does. Shared with a thread that may be left behind.
struct Detective::Machine {
  size_t own;
  std::vector<ProcessCard> cards;
  /// By rank; null for ranks of other hosts.
  std::vector<std::shared_ptr<Logbook>> logbooks;
  /// Those of the others.
  std::vector<const Logbook*> peers;

  explicit Machine(const DetectiveParts& parts) : own(static_cast<size_t>(parts.rank)), cards(parts.cards) {
    for (size_t rank = 0; rank < cards.size(); ++rank) {
      std::shared_ptr<Logbook> logbook = rank == own ? parts.logbook : nullptr;
      if (rank != own && cards[rank].machine == cards[own].machine) {
        logbook = Logbook::of_peer(cards[rank].pid, static_cast<int>(cards[rank].descriptor));
      }
      if (rank != own && logbook) peers.push_back(logbook.get());
      logbooks.push_back(std::move(logbook));
    }
  }

  bool has(size_t rank) const { return logbooks[rank] != nullptr; }

  RankReport report(size_t rank) const {
    // First the process, then its call log: what it wrote before it ended is then seen.
    RankReport report{.presence = rank == own ? Presence::running : presence_of(cards[rank]), .pid = cards[rank].pid};
    report.entry = logbooks[rank]->read();
    return report;
  }

  size_t first() const {
    size_t rank = 0;
    while (!has(rank)) ++rank;
    return rank;
  }

  LogbookPage& first_page() const { return logbooks[first()]->page(); }

  /// For all ranks of this host.
  void tell(std::string diagnosis) const {
    diagnosis.resize(std::min(diagnosis.size(), LogbookPage::kDiagnosis));
    std::copy_n(diagnosis.c_str(), diagnosis.size() + 1, first_page().diagnosis.begin());
    first_page().told = true;
  }

  /// The report of another host, unless this one is about to make its own.
  void hear(const std::string& diagnosis, int rank) const {
    int32_t nobody = 0;
    if (first_page().teller.compare_exchange_strong(nobody, rank + 1)) tell(diagnosis);
  }

  NumberedReports reports() const {
    NumberedReports found;
    for (size_t rank = 0; rank < cards.size(); ++rank) {
      if (has(rank)) found.emplace_back(static_cast<int64_t>(rank), report(rank));
    }
    return found;
  }

  /// The first rank of every other host.
  std::vector<int64_t> first_of_others() const {
    std::vector<int64_t> ranks;
    std::set<uint64_t> seen;
    for (const int64_t rank : others()) {
      if (seen.insert(cards[static_cast<size_t>(rank)].machine).second) ranks.push_back(rank);
    }
    return ranks;
  }

  std::vector<int64_t> others() const {
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < cards.size(); ++rank) {
      if (!has(rank)) ranks.push_back(static_cast<int64_t>(rank));
    }
    return ranks;
  }
};

Detective::Detective(DetectiveParts parts) : parts_(std::move(parts)), machine_(std::make_shared<Machine>(parts_)) {
  const WithoutSignals for_our_threads;
  if (parts_.store && !machine_->others().empty()) {
    remote_ = RemoteReports::start(
        parts_.store->clone(), parts_.rank, first_here(), [machine = machine_] { return machine->reports(); },
        [machine = machine_, rank = parts_.rank](const std::string& diagnosis) { machine->hear(diagnosis, rank); });
  }
  if (parts_.threshold > 0ms) watcher_ = std::thread([this] { watch(); });
}

Detective::~Detective() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (remote_) remote_->stop();
}

int Detective::first_here() const { return static_cast<int>(machine_->first()); }

bool Detective::someone_died() const {
  const auto reports = machine_->reports();
  return std::any_of(reports.begin(), reports.end(), [](const auto& report) {
    return report.second.presence == Presence::gone && report.second.entry->ending == Ending::none;
  });
}

std::string Detective::last_report() const { return pack({{parts_.rank, machine_->report(machine_->own)}}); }

bool Detective::is_told() const { return machine_->first_page().told; }

bool Detective::is_lost() const { return is_told() || someone_died(); }

bool Detective::sees_everyone() const { return machine_->peers.size() + 1 == parts_.cards.size(); }

bool Detective::is_contradicted(int64_t number) const {
  const uint64_t mine = parts_.logbook->mark(number);
  const auto differs = [&](const Logbook* peer) { return contradict(mine, peer->mark(number)); };
  return std::any_of(machine_->peers.begin(), machine_->peers.end(), differs);
}

void Detective::let_others_catch_up(int64_t number, std::chrono::milliseconds patience) const {
  // Marks are written over one by one: it is enough to look twice a round.
  constexpr auto kHalf = static_cast<int64_t>(LogbookPage::kMarks / 2);
  if (number % kHalf != 0) return;
  const auto is_behind = [&](const Logbook* peer) { return peer->page().calls.load() <= number - kHalf; };
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (std::any_of(machine_->peers.begin(), machine_->peers.end(), is_behind)) {
    const auto has_ended = [&](const Logbook* peer) { return is_behind(peer) && peer->page().ending != Ending::none; };
    if (is_lost() || std::any_of(machine_->peers.begin(), machine_->peers.end(), has_ended))
      throw std::runtime_error("A straggler has left the group.");
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("Timed out after " + std::to_string(patience.count()) + " ms.");
    std::this_thread::sleep_for(1ms);
  }
}

bool Detective::store_is_lost() const {
  if (parts_.parent) return parts_.parent->store_is_lost();
  return parts_.first_serves_store && machine_->has(0) && machine_->report(0).presence == Presence::gone;
}

bool Detective::has_left(int rank) const {
  return machine_->has(static_cast<size_t>(rank)) && is_out(machine_->report(static_cast<size_t>(rank)));
}

bool Detective::nobody_is_left() const {
  const auto reports = machine_->reports();
  return reports.size() == parts_.cards.size() && std::all_of(reports.begin(), reports.end(), [this](const auto& report) {
           return report.first == parts_.rank || is_out(report.second);
         });
}

std::vector<RankReport> Detective::look_around() const {
  std::vector<RankReport> reports(parts_.cards.size());
  if (remote_) {
    try {
      const auto answers = within(kAnswers + 1s, "the store does not answer",
                                  [remote = remote_, others = machine_->others()] { return remote->ask(others, kAnswers); });
      for (auto& report : reports) report.presence = Presence::silent;
      enter_into(reports, answers);
    } catch (const std::exception&) {
      // The store is gone with its host, or stopped with it: the others stay unknown, and the report says so.
    }
  }
  enter_into(reports, machine_->reports());
  return reports;
}

std::vector<RankReport> Detective::investigate(const std::string& reason, int64_t mismatch) const {
  auto reports = look_around();
  if (mismatch != 0 || reason.find("imed out") != std::string::npos) return reports;
  const auto deadline = std::chrono::steady_clock::now() + kCause;
  while (!names_a_cause(reports) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
    enter_into(reports, machine_->reports());
  }
  // A connection was lost, and a process that is only stopped keeps its own: a silent one is dead. Without the store nothing
  // is known but that its host is gone.
  for (auto& report : reports) {
    if (report.presence == Presence::silent) report.presence = Presence::gone;
  }
  auto& first = reports.front();
  if (first.presence == Presence::unknown && parts_.first_serves_store && remote_ && remote_->lost())
    first.presence = Presence::gone;
  return reports;
}

/// The launcher blames the process that exits first, so those that failed exit first: the dead have exited already.
/// One that fails and continues is not waited for long.
void Detective::let_culprits_end(const std::vector<RankReport>& reports) const {
  const auto died = [](const RankReport& report) { return report.presence == Presence::gone; };
  if (std::any_of(reports.begin(), reports.end(), died)) return;
  const auto deadline = std::chrono::steady_clock::now() + kCause / 4;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const bool failed = reports[rank].entry && reports[rank].entry->ending == Ending::failed;
    if (!failed || !machine_->has(rank)) continue;
    while (presence_of(parts_.cards[rank]) != Presence::gone && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(1ms);
    }
  }
}

std::string Detective::settle(const std::vector<RankReport>& reports, int64_t mismatch) const {
  const std::string diagnosis = diagnose(reports, mismatch, parts_.names);
  try {
    return within(1s, "the store does not answer", [remote = remote_, diagnosis] { return remote->settle(diagnosis); });
  } catch (const std::exception&) {
    // It has reported everything, and may have exited with its host since.
    const auto is_known = [](const RankReport& report) { return report.presence != Presence::unknown; };
    if (std::all_of(reports.begin(), reports.end(), is_known)) return diagnosis;
    return diagnosis +
           (parts_.first_serves_store
                ? "\nThe store that rank 0 hosts cannot be reached: rank 0 has exited or is stopped, or the network is down."
                : "\nThe rendezvous store cannot be reached.");
  }
}

/// The report of another host: its author may have left, and would not answer.
std::optional<std::string> Detective::diagnosis_of_others() const {
  if (!remote_) return std::nullopt;
  try {
    return within(1s, "the store does not answer", [remote = remote_] { return remote->settled(); });
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string Detective::tell(const std::string& reason, int64_t mismatch) const {
  // One rank of a host investigates, so that all report the same.
  LogbookPage& page = machine_->first_page();
  int32_t teller = 0;
  if (page.teller.compare_exchange_strong(teller, parts_.rank + 1)) {
    if (const auto diagnosis = diagnosis_of_others()) {
      machine_->tell(*diagnosis);
      return *diagnosis;
    }
    const auto reports = investigate(reason, mismatch);
    let_culprits_end(reports);
    const std::string diagnosis = remote_ ? settle(reports, mismatch) : diagnose(reports, mismatch, parts_.names);
    machine_->tell(diagnosis);
    return diagnosis;
  }
  const auto deadline = std::chrono::steady_clock::now() + 2 * kAnswers + kCause;
  const ProcessCard& who = parts_.cards[static_cast<size_t>(teller - 1)];
  while (!page.told && presence_of(who) == Presence::running && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(1ms);
  }
  // Not reported: it died before.
  return page.told ? page.diagnosis.data() : diagnose(investigate(reason, mismatch), mismatch, parts_.names);
}

std::string Detective::explain(const std::string& reason, int64_t mismatch) {
  const std::string diagnosis = tell(reason, mismatch);
  // The store goes when rank 0 does, and other hosts look at it once a second.
  if (remote_ && parts_.first_serves_store && parts_.rank == 0) {
    try {
      remote_->serve(machine_->first_of_others(), kAnswers);
    } catch (const std::exception&) {
      // Then nobody can come for it.
    }
  }
  return diagnosis;
}

void Detective::watch() {
  const auto tick = std::clamp(std::chrono::milliseconds(parts_.threshold / 4), 10ms, kTick);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, tick, [&] { return ending_; })) {
    lock.unlock();
    look_at_own_call();
    lock.lock();
  }
  look_at_own_call();  // a warning is taken back also at the very end
}

void Detective::look_at_own_call() try {
  const RankEntry entry = parts_.logbook->read();
  if (entry.ending == Ending::failed) return;  // the error tells it
  look_at_own_message(entry);
  const Call* call = waiting_call(entry);
  if (warned_.number != 0 && (call == nullptr || call->number != warned_.number)) {
    write_line(2, fmt::format("accelerate: {} resumed after {:.1f} s.", describe(warned_),
                              static_cast<double>(entry.read - warned_.began) * 1e-9));
    warned_ = {};
  }
  if (call == nullptr) return;
  if (warned_.number != 0) return look_for_news(*call);
  const std::chrono::nanoseconds waited(entry.read - call->began);
  const bool long_ago = waited > parts_.threshold || (waited > kTick && someone_died());
  if (long_ago && speaks_for_machine(*call)) warn(*call);
} catch (const std::exception&) {
  // A watcher must not end the program.
}

/// Only this rank knows of its sends and receives, so it speaks for itself.
void Detective::look_at_own_message(const RankEntry& entry) {
  const auto waited = [&] { return static_cast<double>(entry.read - warned_message_.began) * 1e-9; };
  const Activity now = entry.activity && entry.activity->waits != 0 ? *entry.activity : Activity();
  if (warned_message_.began != 0 && now.began != warned_message_.began) {
    write_line(2, fmt::format("accelerate: {} resumed after {:.1f} s.", describe(warned_message_), waited()));
    warned_message_ = {};
  }
  if (now.began == 0 || warned_message_.began != 0) return;
  if (std::chrono::nanoseconds(entry.read - now.began) <= parts_.threshold) return;
  warned_message_ = now;
  const std::string others = diagnose(look_around(), 0, parts_.names);
  write_line(2, fmt::format("accelerate: {} has been waiting for {:.1f} s. {}", describe(now), waited(), others));
}

/// The rank that reached the threshold first, or the next one when that one is stopped.
bool Detective::speaks_for_machine(const Call& call) const {
  LogbookPage& page = machine_->first_page();
  int64_t before = page.warned;
  while (before < call.number && !page.warned.compare_exchange_weak(before, call.number)) continue;
  if (before < call.number) {
    page.speaker = parts_.rank + 1;
    return true;
  }
  int32_t speaker = page.speaker;
  return speaker != 0 && speaker != parts_.rank + 1 &&
         presence_of(parts_.cards[static_cast<size_t>(speaker - 1)]) == Presence::stopped &&
         page.speaker.compare_exchange_strong(speaker, parts_.rank + 1);
}

void Detective::warn(const Call& call) {
  warned_ = call;
  const auto reports = look_around();
  gist_ = news_ = gist_of(reports);
  next_look_ = std::chrono::steady_clock::now() + (remote_ ? kAskAgain : 0s);
  say_or_tell(call, reports, false);
}

/// Says again what a call waits for when that is no longer what was said.
void Detective::look_for_news(const Call& call) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_ || machine_->first_page().speaker != parts_.rank + 1) return;
  const auto reports = look_around();
  next_look_ = std::chrono::steady_clock::now() + (remote_ ? kAskAgain : 0s);
  if (std::string gist = gist_of(reports); gist != news_) {
    news_ = std::move(gist);
    news_since_ = now;
  }
  if (news_ == gist_ || now - news_since_ < kLasting) return;
  gist_ = news_;
  say_or_tell(call, reports, true);
}

/// Calls that do not match will never end: that is an error on all ranks, now.
void Detective::say_or_tell(const Call& call, const std::vector<RankReport>& reports, bool again) {
  if (const int64_t mismatch = mismatched_call(reports); mismatch != 0) {
    explain("", mismatch);
    return;
  }
  const std::string waited = fmt::format("{:.1f} s", static_cast<double>(logbook_now() - call.began) * 1e-9);
  const std::string how = again ? "is still waiting after " + waited + ", and the state of the ranks has changed. "
                                : "has been waiting for " + waited + ". ";
  write_line(2, "accelerate: " + describe(call) + " " + how + diagnose(reports, 0, parts_.names));
}

}  // namespace accelerate::detail
