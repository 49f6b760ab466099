#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "distributed/busy.h"
#include "distributed/hang_diagnosis.h"
#include "distributed/logbook.h"
#include "distributed/peer_process.h"
#include "distributed/remote_reports.h"

namespace {

using namespace accelerate;
using namespace accelerate::detail;

constexpr int64_t kSecond = 1'000'000'000;

Call call_of(int64_t number, const char* name, int64_t began, int64_t ended) {
  Call call;
  call.number = number;
  call.began = began * kSecond;
  call.ended = ended * kSecond;
  std::strcpy(call.name.data(), name);
  std::strcpy(call.file.data(), "train.cpp");
  call.line = static_cast<int32_t>(number * 10);
  call.fingerprint = std::hash<std::string>()(name);
  return call;
}

/// A rank as seen at second 100.
RankReport report_of(Presence presence, std::vector<Call> calls) {
  RankReport report{.presence = presence, .pid = 7};
  report.entry = RankEntry{.calls = std::move(calls), .read = 100 * kSecond, .joined = 60 * kSecond};
  return report;
}

TEST(HangDiagnosis, TellsWhoWaitsAndWhoIsElsewhere) {
  auto loading = report_of(Presence::running, {call_of(1, "gather", 80, 81)});
  loading.entry->activity = Activity{.began = 90 * kSecond, .name = {"load_file"}, .place = {"w.safetensors"}};
  EXPECT_EQ(diagnose({report_of(Presence::running, {call_of(1, "gather", 80, 81), call_of(2, "reduce", 82, 0)}),
                      report_of(Presence::running, {call_of(1, "gather", 80, 81)}), loading, report_of(Presence::running, {})}),
            "Ranks 1, 2 and 3 have not reached call 2.\n"
            "  - Rank 0: waiting for 18.0 s in reduce (call 2) at train.cpp:20\n"
            "  - Rank 1: in user code for 19.0 s; its last call was gather (call 1) at train.cpp:10\n"
            "  - Rank 2: in load_file of w.safetensors for 10.0 s; its last call was gather (call 1) at train.cpp:10\n"
            "  - Rank 3: in user code for 40.0 s; it has made no call yet");
}

TEST(HangDiagnosis, NamesRanksOfTheRunWhereTheyAreOthers) {
  const RankNames names({0, 3, 5});
  const auto waits = report_of(Presence::running, {call_of(2, "reduce", 82, 0)});
  const auto behind = report_of(Presence::running, {call_of(1, "gather", 80, 81)});
  EXPECT_EQ(diagnose({waits, behind, behind}, 0, names),
            "Ranks 1 (rank 3 of the run) and 2 (rank 5 of the run) have not reached call 2.\n"
            "  - Rank 0: waiting for 18.0 s in reduce (call 2) at train.cpp:20\n"
            "  - Rank 1 (rank 3 of the run): in user code for 19.0 s; its last call was gather (call 1) at train.cpp:10\n"
            "  - Rank 2 (rank 5 of the run): in user code for 19.0 s; its last call was gather (call 1) at train.cpp:10");
}

TEST(HangDiagnosis, TellsWhatARankDoesAtALineOfItsProgram) {
  auto receives = report_of(Presence::running, {}), waits = report_of(Presence::running, {call_of(1, "reduce", 82, 0)});
  receives.entry->activity = Activity{.began = 90 * kSecond, .name = {"recv from rank 0"}, .place = {"train.cpp"}, .line = 7};
  EXPECT_EQ(diagnose({receives, waits}),
            "Rank 0 has not reached call 1.\n"
            "  - Rank 0: in recv from rank 0 at train.cpp:7 for 10.0 s; it has made no call yet\n"
            "  - Rank 1: waiting for 18.0 s in reduce (call 1) at train.cpp:10");
  EXPECT_TRUE(diagnose({receives, receives}).starts_with("No rank is in a collective of the group.\n"));
}

TEST(HangDiagnosis, TellsApartDeadFinishedFailedStoppedSilentAndUnknown) {
  const std::vector<Call> calls = {call_of(1, "gather", 80, 81)};
  auto finished = report_of(Presence::gone, calls), failed = report_of(Presence::running, calls);
  finished.entry->ending = Ending::finished;
  finished.entry->ended = 95 * kSecond;
  failed.entry->ending = Ending::failed;
  failed.entry->ended = 99 * kSecond;
  EXPECT_EQ(diagnose({report_of(Presence::gone, calls), finished, failed, report_of(Presence::stopped, calls),
                      RankReport{.presence = Presence::silent}, RankReport{.presence = Presence::gone}, RankReport{}}),
            "Ranks 0 and 5 are dead. Rank 1 has finished and left the group. Rank 2 has failed. Ranks 3 and 4 are "
            "not responding.\n"
            "  - Rank 0: dead, its process 7 has exited; last seen in gather (call 1) at train.cpp:10, which ended 19.0 s ago\n"
            "  - Rank 1: finished and left the group 5.0 s ago; its last call was gather (call 1) at train.cpp:10\n"
            "  - Rank 2: failed and left the group 1.0 s ago; its last call was gather (call 1) at train.cpp:10\n"
            "  - Rank 3: not responding, its process 7 is stopped; last seen in gather (call 1) at train.cpp:10, which ended "
            "19.0 s ago\n"
            "  - Rank 4: not responding to queries\n"
            "  - Rank 5: dead, its connections are closed\n"
            "  - Rank 6: unknown, it could not be reached");
}

TEST(HangDiagnosis, TheOldestCallThatDiffersIsNamedAlsoWhenItHasPassed) {
  auto wide = call_of(2, "gather", 82, 83), narrow = wide;
  wide.dtype = narrow.dtype = static_cast<int16_t>(at::kBFloat16);
  wide.dimensions = narrow.dimensions = 8;
  wide.shape = {1, 2, 3, 4, 5, 6};
  narrow.shape = {1, 2, 3, 4, 5, 7};
  narrow.fingerprint = wide.fingerprint + 1;
  const std::string diagnosis =
      diagnose({report_of(Presence::running, {call_of(1, "gather", 80, 81), wide, call_of(3, "reduce", 84, 0)}),
                report_of(Presence::running, {call_of(1, "gather", 80, 81), narrow, call_of(3, "gather", 84, 0)})});
  EXPECT_TRUE(
      diagnosis.starts_with("Call 2 is not the same on all ranks: gather of bfloat16[1, 2, 3, 4, 5, 6, ...] at "
                            "train.cpp:20 on rank 0, gather of bfloat16[1, 2, 3, 4, 5, 7, ...] at train.cpp:20 on rank 1."))
      << diagnosis;
}

TEST(HangDiagnosis, ACallThatDiffersIsNamedAlsoByThoseThatHaveForgottenIt) {
  auto ours = call_of(2, "reduce", 80, 0);
  std::strcpy(ours.how.data(), "by sum");
  const std::string diagnosis =
      diagnose({report_of(Presence::running, {ours}), report_of(Presence::running, {call_of(50, "gather", 90, 91)}),
                report_of(Presence::running, {call_of(1, "gather", 70, 71)})},
               2);
  EXPECT_TRUE(
      diagnosis.starts_with("Call 2 is not the same on all ranks: reduce by sum at train.cpp:20 on rank 0, no longer recorded on "
                            "rank 1. All ranks must make the same calls in the same order, with the same shapes and dtypes. "
                            "Rank 2 has not reached call 2.\n"))
      << diagnosis;
}

TEST(HangDiagnosis, WhoMayCallWhatOthersDoDiffersFromNobody) {
  auto follows = call_of(1, "join_uneven_inputs", 80, 0);
  follows.fingerprint = 0;
  const auto forward = report_of(Presence::running, {call_of(1, "forward", 80, 0)});
  EXPECT_EQ(mismatched_call({report_of(Presence::running, {follows}), forward}), 0);
  EXPECT_EQ(mismatched_call({report_of(Presence::running, {call_of(1, "gather", 80, 0)}), forward}), 1);
}

TEST(HangDiagnosis, WhoStillCalculatesHasNotComeAndSomebodyWhoWaitsElsewhereNeither) {
  auto calculates = call_of(2, "backward", 95, 0);
  calculates.ended = Call::kComputing;
  const std::vector<RankReport> reports = {report_of(Presence::running, {call_of(2, "backward", 98, 0)}),
                                           report_of(Presence::running, {calculates, call_of(3, "batch_norm", 96, 97)}),
                                           report_of(Presence::running, {calculates}),
                                           report_of(Presence::running, {call_of(1, "main_process_first", 80, 0)})};
  EXPECT_EQ(diagnose(reports),
            "Ranks 1, 2 and 3 have not reached call 2.\n"
            "  - Rank 0: waiting for 2.0 s in backward (call 2) at train.cpp:20\n"
            "  - Rank 1: in user code for 3.0 s; its last call was batch_norm (call 3) at train.cpp:30\n"
            "  - Rank 2: computing for 5.0 s in backward (call 2) at train.cpp:20\n"
            "  - Rank 3: waiting for 20.0 s in main_process_first (call 1) at train.cpp:10");
}

TEST(HangDiagnosis, TheGistOfADiagnosisChangesWithWhoIsMissingAndNotWithTime) {
  const std::vector<RankReport> before = {report_of(Presence::running, {call_of(2, "reduce", 80, 0)}),
                                          report_of(Presence::running, {call_of(1, "gather", 70, 71)})};
  auto later = before, stopped = before, there = before;
  for (auto& report : later) report.entry->read += 5 * kSecond;
  later[1].entry->activity = Activity{.began = 90 * kSecond, .name = {"load_file"}, .place = {"w.safetensors"}};
  stopped[1].presence = Presence::stopped;
  there[1].entry->calls.push_back(call_of(2, "reduce", 99, 0));
  EXPECT_EQ(gist_of(later), gist_of(before));
  EXPECT_NE(gist_of(stopped), gist_of(before));
  EXPECT_NE(gist_of(there), gist_of(before));
}

TEST(HangDiagnosis, APlaceThatIsNotKnownIsLeftOut) {
  auto nowhere = call_of(1, "backward", 80, 0);
  nowhere.line = 0;
  const std::string diagnosis =
      diagnose({report_of(Presence::running, {nowhere}), report_of(Presence::running, {call_of(1, "gather", 80, 0)})});
  EXPECT_TRUE(
      diagnosis.starts_with("Call 1 is not the same on all ranks: backward on rank 0, gather at train.cpp:10 on rank 1. "))
      << diagnosis;
}

TEST(Logbook, IsReadWhileItsProcessIsStoppedAndAfterItsDeath) {
  Logbook mine;
  const pid_t child = ::fork();
  if (child == 0) {
    // The child writes into the shared page and stops in the middle of a call.
    mine.leave(mine.enter({"gather", std::source_location::current()}));
    mine.enter({"wait_for_everyone", std::source_location::current()});
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  const auto card = [&] {
    ProcessCard of_child = ProcessCard::of_this_process("here", mine.descriptor());
    of_child.pid = child;
    return of_child;
  }();
  const auto peer = Logbook::of_peer(child, mine.descriptor());
  ASSERT_NE(peer, nullptr);
  EXPECT_EQ(presence_of(card), Presence::gone) << "another process than the one that started then";
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  const RankEntry entry = peer->read();
  ASSERT_EQ(entry.calls.size(), 2u);
  EXPECT_NE(entry.calls[0].ended, 0);
  EXPECT_STREQ(entry.calls[1].name.data(), "wait_for_everyone");
  EXPECT_EQ(entry.calls[1].ended, 0);
  EXPECT_EQ(Logbook::of_peer(child, mine.descriptor()), nullptr);
}

TEST(Logbook, KnowsWhetherItsProcessRunsIsStoppedOrIsGone) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const ProcessCard card = ProcessCard::of_this_process("here", 3);
    if (::write(pipe[1], &card, sizeof(card)) != sizeof(card)) ::_exit(1);
    for (;;) ::pause();
  }
  ProcessCard card;
  ASSERT_EQ(::read(pipe[0], &card, sizeof(card)), static_cast<ssize_t>(sizeof(card)));
  EXPECT_EQ(card.pid, child);
  EXPECT_EQ(card.machine, ProcessCard::of_this_process("here", 4).machine);
  EXPECT_NE(card.machine, ProcessCard::of_this_process("there", 4).machine);
  EXPECT_EQ(presence_of(card), Presence::running);
  int status = 0;
  ::kill(child, SIGSTOP);
  ::waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(presence_of(card), Presence::stopped);
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(presence_of(card), Presence::gone) << "also as long as nobody has taken note of its end";
  ::waitpid(child, &status, 0);
  EXPECT_EQ(presence_of(card), Presence::gone);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(Logbook, AProcessWhoseFirstThreadHasEndedIsNotGone) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::thread([&] {
      // The first thread has ended when its state is that of a zombie.
      for (;;) {
        std::ifstream file("/proc/self/stat");
        std::string text;
        std::getline(file, text);
        if (text.find(") Z ") != std::string::npos) break;
      }
      const ProcessCard card = ProcessCard::of_this_process("here", 3);
      if (::write(pipe[1], &card, sizeof(card)) != sizeof(card)) ::_exit(1);
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);  // of this thread alone, and without unwinding
  }
  ::close(pipe[1]);
  ProcessCard card;
  ASSERT_EQ(::read(pipe[0], &card, sizeof(card)), static_cast<ssize_t>(sizeof(card)));
  EXPECT_EQ(presence_of(card), Presence::running);
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  EXPECT_EQ(presence_of(card), Presence::gone);
  ::waitpid(child, nullptr, 0);
  ::close(pipe[0]);
}

TEST(Logbook, KeepsTheNewestCallsAndTheEndOfLongNames) {
  Logbook logbook;
  const auto tensor = torch::zeros({2, 3}, torch::kLong);
  for (int i = 0; i < 100; ++i) logbook.leave(logbook.enter({"gather", std::source_location::current(), &tensor}));
  const RankEntry entry = logbook.read();
  ASSERT_EQ(entry.calls.size(), LogbookPage::kCalls);
  EXPECT_EQ(entry.calls.back().number, 100);
  EXPECT_EQ(describe(entry.calls.back()).substr(0, 36), "gather of int64[2, 3] (call 100) at ");
  const int64_t saving = logbook.begin_activity(Activity::with("save_file", std::string(500, 'x') + "/end"));
  const auto activity = logbook.read().activity;
  ASSERT_TRUE(activity);
  EXPECT_TRUE(std::string(activity->place.data()).ends_with("/end"));
  logbook.end_activity(saving);
  EXPECT_FALSE(logbook.read().activity);
}

TEST(Logbook, ShowsTheNewestActivityThatHasNotEnded) {
  Logbook logbook;
  const auto shown = [&] { return std::string(logbook.read().activity.value_or(Activity()).name.data()); };
  const int64_t outer = logbook.begin_activity(Activity::with("load_state", "a"));
  const int64_t inner = logbook.begin_activity(Activity::with("load_file", "b"));
  const int64_t beside = logbook.begin_activity(Activity::at("recv from rank 0", std::source_location::current()));
  EXPECT_EQ(shown(), "recv from rank 0");
  logbook.end_activity(inner);
  EXPECT_EQ(shown(), "recv from rank 0");
  logbook.end_activity(beside);
  EXPECT_EQ(shown(), "load_state");
  logbook.end_activity(outer);
  EXPECT_EQ(shown(), "");
}

TEST(Logbook, WhatAThreadIsBusyWithStandsInTheLogsOfAllItsGroups) {
  const auto first = std::make_shared<Logbook>(), second = std::make_shared<Logbook>(), other = std::make_shared<Logbook>();
  std::thread([&] {
    Busy::belongs_to(first);
    Busy::belongs_to(second);
    Busy::belongs_to(std::make_shared<Logbook>());  // of a group that has ended
    const Busy busy("load_file", "weights");
    for (const auto& logbook : {first, second}) EXPECT_TRUE(logbook->read().activity);
    EXPECT_FALSE(other->read().activity);
    EXPECT_EQ(Busy::logbooks_beside(first.get()), Logbooks{second});
  }).join();
  for (const auto& logbook : {first, second}) EXPECT_FALSE(logbook->read().activity);
}

/// The marks that calls leave behind, one after the other.
template <class... Calls>
std::vector<uint64_t> marks_of(const Calls&... calls) {
  Logbook logbook;
  return {logbook.mark(logbook.enter(calls))...};
}

TEST(Logbook, MarksOfCallsThatMustAgreeAndDoNotContradictEachOther) {
  const auto here = std::source_location::current();
  const auto floats = torch::ones({2, 3}), turned = torch::ones({3, 2}), ints = torch::ones({2, 3}, torch::kInt);
  const auto deep = torch::ones({1, 1, 1, 1, 1, 1, 1, 2}), deeper = torch::ones({1, 1, 1, 1, 1, 1, 1, 3});
  const auto contradicts = [](const CallNote& a, const CallNote& b) {
    return contradict(marks_of(a).front(), marks_of(b).front());
  };
  const CallNote gather{"gather", here, &floats};
  EXPECT_FALSE(contradicts(gather, {"gather", {}, &floats})) << "the same call may stand in two branches of an if";
  EXPECT_TRUE(contradicts(gather, {"reduce", here, &floats}));
  EXPECT_TRUE(contradicts(gather, {"gather", here, &turned}));
  EXPECT_TRUE(contradicts(gather, {"gather", here, &ints}));
  EXPECT_TRUE(contradicts(gather, {"gather", here}));
  EXPECT_TRUE(contradicts({"gather", here, &deep}, {"gather", here, &deeper})) << "beyond what is shown";
  EXPECT_TRUE(contradicts({"reduce", here, &floats, "by sum"}, {"reduce", here, &floats, "by max"}));
  EXPECT_FALSE(contradicts(gather, {"join_uneven_inputs", here, &ints}));
  EXPECT_FALSE(contradicts(gather, {.name = "reduce", .compared = false}));
  EXPECT_FALSE(contradict(marks_of(gather).front(), 0)) << "a rank that has not arrived";
  EXPECT_FALSE(contradict(mark_of(1, 5), mark_of(1 + LogbookPage::kMarks, 6))) << "another call in the same place";
}

TEST(Logbook, NestedDataIsToldByItsBeginningAndComparedWhole) {
  const auto tensor = torch::ones({2});
  const std::string first = "{" + std::string(200, 'x') + "a:t,b:t,}", second = "{" + std::string(200, 'x') + "a:t,c:t,}";
  const accelerate::detail::Nesting one(first, 2), other(second, 2), few("[tt]", 2);
  const auto part_of = [&](const accelerate::detail::Nesting& nesting, std::optional<size_t> leaf) {
    return CallNote{.name = "gather", .tensor = &tensor, .nesting = &nesting, .leaf = leaf};
  };
  const auto contradicts = [](const CallNote& a, const CallNote& b) {
    return contradict(marks_of(a).front(), marks_of(b).front());
  };
  EXPECT_FALSE(contradicts(part_of(one, 0), part_of(one, 0)));
  EXPECT_TRUE(contradicts(part_of(one, 0), part_of(other, 0)));
  EXPECT_TRUE(contradicts(part_of(few, 0), part_of(few, 1)));
  EXPECT_TRUE(contradicts(part_of(few, 0), {.name = "gather", .tensor = &tensor}));
  Logbook logbook;
  for (const auto& call : {part_of(few, 1), part_of(few, std::nullopt), part_of(one, 0)}) logbook.enter(call);
  const auto calls = logbook.read().calls;
  EXPECT_STREQ(calls[0].nested.data(), "tensor 2 of 2 in [tt]");
  EXPECT_STREQ(calls[1].nested.data(), "nested as [tt]");
  EXPECT_EQ(std::string(calls[2].nested.data()), "tensor 1 of 2 in {" + std::string(26, 'x') + "...");
}

TEST(Logbook, APassIsAnnouncedBeforeItsRankWaits) {
  Logbook logbook;
  const int64_t number = logbook.announce({"backward"});
  EXPECT_EQ(waiting_call(logbook.read()), nullptr);
  logbook.leave(logbook.enter({"batch_norm"}));
  logbook.begin_waiting(number);
  const RankEntry entry = logbook.read();
  ASSERT_NE(waiting_call(entry), nullptr);
  EXPECT_EQ(waiting_call(entry)->number, number);
  logbook.leave(number);
  EXPECT_EQ(waiting_call(logbook.read()), nullptr);
}

TEST(Logbook, OfTwoRanksThatWriteAndLookOneSeesTheOther) {
  Logbook first, second;
  constexpr int kRounds = 5000;
  std::vector<char> saw_second(kRounds), saw_first(kRounds);
  const auto play = [](Logbook& mine, const Logbook& theirs, const CallNote& call, std::vector<char>& saw) {
    for (auto& seen : saw) {
      const int64_t number = mine.enter(call);
      seen = contradict(mine.mark(number), theirs.mark(number));
      mine.leave(number);
      // In step, so that they meet often; nothing but the marks orders what they look at.
      while (theirs.page().calls.load(std::memory_order_relaxed) < number) std::this_thread::yield();
    }
  };
  std::thread other([&] { play(second, first, {"reduce"}, saw_first); });
  play(first, second, {"gather"}, saw_second);
  other.join();
  for (size_t i = 0; i < kRounds; ++i) ASSERT_TRUE(saw_first[i] || saw_second[i]) << i;
}

TEST(Logbook, AReaderNeverSeesHalfACall) {
  Logbook logbook;
  std::atomic<bool> done = false;
  std::thread writer([&] {
    const auto tensor = torch::zeros({1});
    for (int i = 0; i < 20000; ++i) logbook.leave(logbook.enter({"gather", std::source_location::current(), &tensor}));
    done = true;
  });
  while (!done) {
    for (const Call& call : logbook.read().calls) {
      ASSERT_STREQ(call.name.data(), "gather");
      ASSERT_EQ(call.dimensions, 1);
      ASSERT_TRUE(call.ended == 0 || call.ended >= call.began);
    }
  }
  writer.join();
}

TEST(RemoteReports, ComeBackAsTheyWereSentAndBrokenOnesGiveFewer) {
  NumberedReports sent = {{0, report_of(Presence::running, {call_of(1, "gather", 80, 81), call_of(2, "reduce", 82, 0)})},
                          {3, RankReport{.presence = Presence::stopped, .pid = 9}}};
  sent[0].second.entry->activity = Activity{.began = 90 * kSecond, .name = {"load_file"}, .place = {"w.safetensors"}};
  const std::string bytes = pack(sent);
  const auto received = unpack(bytes);
  ASSERT_EQ(received.size(), 2u);
  EXPECT_EQ(received[1].first, 3);
  EXPECT_EQ(received[1].second.presence, Presence::stopped);
  EXPECT_EQ(diagnose({received[0].second}), diagnose({sent[0].second}));
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT_LT(unpack(bytes.substr(0, length)).size(), 2u) << length;
}

}  // namespace
