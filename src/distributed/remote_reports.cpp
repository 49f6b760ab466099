#include "distributed/remote_reports.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "rendezvous/refused_ranks.h"

namespace accelerate::detail {
namespace {

constexpr std::chrono::seconds kLookEvery{1};
constexpr std::chrono::milliseconds kPoll{50};
/// Longer than a store that serves needs, and short for a wait at the end of a program.
constexpr std::chrono::seconds kStopPatience{2};

template <class Plain>
void put_plain(std::string& bytes, const Plain& value) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

/// False when there are not enough bytes left.
template <class Plain>
bool take_plain(std::string_view& bytes, Plain& value) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  if (bytes.size() < sizeof(value)) return false;
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return true;
}

bool take_entry(std::string_view& bytes, RankEntry& entry) {
  Activity activity;
  uint64_t calls = 0;
  if (!take_plain(bytes, entry.ending) || !take_plain(bytes, entry.ended) || !take_plain(bytes, entry.joined) ||
      !take_plain(bytes, entry.read) || !take_plain(bytes, activity) || !take_plain(bytes, calls) || calls > LogbookPage::kCalls)
    return false;
  if (activity.began != 0) entry.activity = activity;
  entry.calls.resize(calls);
  return std::all_of(entry.calls.begin(), entry.calls.end(), [&](Call& call) { return take_plain(bytes, call); });
}

std::vector<uint8_t> as_bytes(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

std::string pack(const NumberedReports& reports) {
  std::string bytes;
  for (const auto& [rank, report] : reports) {
    put_plain(bytes, rank);
    put_plain(bytes, report.presence);
    put_plain(bytes, report.pid);
    put_plain(bytes, static_cast<int64_t>(report.entry.has_value()));
    if (!report.entry) continue;
    const RankEntry& entry = *report.entry;
    put_plain(bytes, entry.ending);
    put_plain(bytes, entry.ended);
    put_plain(bytes, entry.joined);
    put_plain(bytes, entry.read);
    put_plain(bytes, entry.activity.value_or(Activity()));
    put_plain(bytes, static_cast<uint64_t>(entry.calls.size()));
    for (const Call& call : entry.calls) put_plain(bytes, call);
  }
  return bytes;
}

NumberedReports unpack(std::string_view bytes) {
  NumberedReports reports;
  while (!bytes.empty()) {
    int64_t rank = 0, with_entry = 0;
    RankReport report;
    if (!take_plain(bytes, rank) || !take_plain(bytes, report.presence) || !take_plain(bytes, report.pid) ||
        !take_plain(bytes, with_entry))
      break;
    if (with_entry != 0 && !take_entry(bytes, report.entry.emplace())) break;
    reports.emplace_back(rank, std::move(report));
  }
  return reports;
}

std::shared_ptr<RemoteReports> RemoteReports::start(c10::intrusive_ptr<c10d::Store> store, int rank, int first, Look look,
                                                    Hear hear) {
  std::shared_ptr<RemoteReports> reports(new RemoteReports(std::move(store), rank, first, std::move(look), std::move(hear)));
  std::thread([reports] { reports->answer_questions(); }).detach();
  return reports;
}

void RemoteReports::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, kStopPatience, [&] { return stopped_; });
}

template <class Action>
auto RemoteReports::with_store(Action action) {
  if (lost_) throw std::runtime_error("the store is lost");
  try {
    return action(*store_);
  } catch (const std::exception&) {
    lost_ = true;  // c10d fills the screen with stack frames each time
    throw;
  }
}

void RemoteReports::answer_questions() {
  int64_t answered = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_ && !lost_) {
    lock.unlock();
    try {
      const int64_t question = with_store([](c10d::Store& store) { return store.add("questions", 0); });
      if (question > answered) answer(question);
      answered = question;
      if (question > 0) listen();
      if (rank_ == 0) with_store([](c10d::Store& store) { tell_refusals(store); });
    } catch (const std::exception&) {
      // The store is gone with its host: nobody will ask again.
    }
    lock.lock();
    changed_.wait_for(lock, kLookEvery, [&] { return stopping_; });
  }
  stopped_ = true;
  changed_.notify_all();
}

void RemoteReports::answer(int64_t question) {
  std::string bytes;
  put_plain(bytes, question);
  bytes += pack(look_());
  with_store([&](c10d::Store& store) { store.set("answer/" + std::to_string(rank_), as_bytes(bytes)); });
}

/// A rank that is still in a collective when the group fails gets the report before the store is gone.
void RemoteReports::listen() {
  if (heard_) return;
  const auto diagnosis = settled();
  if (!diagnosis) return;
  hear_(*diagnosis);
  heard_ = true;
}

void RemoteReports::note_settled(c10d::Store& store) const {
  store.set("settled/" + std::to_string(first_), std::vector<uint8_t>{1});
}

std::optional<std::string> RemoteReports::settled() {
  return with_store([&](c10d::Store& store) -> std::optional<std::string> {
    if (!store.check({"diagnosis"})) return std::nullopt;
    const auto diagnosis = store.get("diagnosis");
    note_settled(store);
    return std::string(diagnosis.begin(), diagnosis.end());
  });
}

NumberedReports RemoteReports::ask(const std::vector<int64_t>& ranks, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  NumberedReports reports;
  const auto known = [&](int64_t rank) {
    return std::any_of(reports.begin(), reports.end(), [&](const auto& report) { return report.first == rank; });
  };
  // A rank that has left the group does not answer, and has published its last state.
  const auto add = [&](const std::vector<uint8_t>& value) {
    for (auto& report : unpack({reinterpret_cast<const char*>(value.data()), value.size()})) reports.push_back(std::move(report));
  };
  with_store([&](c10d::Store& store) {
    const int64_t question = store.add("questions", 1);
    while (std::chrono::steady_clock::now() < deadline && !std::all_of(ranks.begin(), ranks.end(), known)) {
      for (const int64_t rank : ranks) {
        const std::string end = "end/" + std::to_string(rank), key = "answer/" + std::to_string(rank);
        if (!known(rank) && store.check({end})) add(store.get(end));
        if (known(rank) || !store.check({key})) continue;
        const auto value = store.get(key);
        std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
        int64_t answered = 0;
        if (!take_plain(bytes, answered) || answered < question) continue;
        for (auto& report : unpack(bytes)) reports.push_back(std::move(report));
      }
      std::this_thread::sleep_for(kPoll);
    }
  });
  return reports;
}

std::string RemoteReports::settle(const std::string& text) {
  return with_store([&](c10d::Store& store) {
    const auto diagnosis = store.compareSet("diagnosis", {}, as_bytes(text));
    note_settled(store);
    return std::string(diagnosis.begin(), diagnosis.end());
  });
}

void RemoteReports::serve(const std::vector<int64_t>& ranks, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  with_store([&](c10d::Store& store) {
    const auto has_settled = [&](int64_t rank) { return store.check({"settled/" + std::to_string(rank)}); };
    while (std::chrono::steady_clock::now() < deadline && !std::all_of(ranks.begin(), ranks.end(), has_settled)) {
      std::this_thread::sleep_for(kPoll);
    }
  });
}

}  // namespace accelerate::detail
