// Launchers of several machines in one process: they never wait, so one thread can serve them all.
#include "elastic/machine_group.h"

#include <accelerate/core/error.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <set>

#include <accelerate/core/error.h>
#include "elastic/network_interface.h"
#include "support/error_text.h"
#include "support/held_port.h"

namespace {

using namespace accelerate::detail;
using accelerate::MachineSettings;
using accelerate::testing::expect_parts;
using Clock = std::chrono::steady_clock;

class Machines : public ::testing::Test {
 protected:
  MachineSettings settings(int rank, int count = 3) const {
    return {.rank = rank,
            .count = count,
            .address = "127.0.0.1",
            .port = std::stoi(port_.text()),
            .job = "train",
            .processes = 2,
            .patience = std::chrono::seconds(30),
            .reserve_port = [] { return next_port_++; },
            .environment = [](const std::string&) { return std::nullopt; }};
  }
  /// A machine that is numbered when it joins; the first one here listens.
  MachineSettings numbered(int least, int most) const {
    auto settings = this->settings(0, most);
    settings.rank.reset();
    settings.least = least;
    settings.last_call = std::chrono::milliseconds(300);
    return settings;
  }
  static MachineSettings with_secret(MachineSettings settings, const std::string& secret) {
    settings.environment = [secret](const std::string& name) -> std::optional<std::string> {
      return name == "ACCELERATE_RENDEZVOUS_SECRET" ? std::optional(secret) : std::nullopt;
    };
    return settings;
  }
  MachineGroup& add(const MachineSettings& settings) {
    all_.push_back(MachineGroup::join(settings));
    return *all_.back();
  }
  /// Serves all until `done`, as launchers do.
  template <class Condition>
  void serve_until(Condition done, std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    const auto end = Clock::now() + limit;
    while (!done()) {
      if (Clock::now() > end) return ADD_FAILURE() << "waited too long", void();
      std::vector<pollfd> watched;
      for (const auto& each : all_) {
        if (each) each->add_to(watched);
      }
      ::poll(watched.data(), watched.size(), 20);
      for (const auto& each : all_) {
        if (each) each->serve();
      }
    }
  }
  std::optional<Round> round_of(MachineGroup& machine) {
    std::optional<Round> round;
    serve_until([&] { return (round = machine.take_round()).has_value(); });
    return round;
  }
  /// All of them begin the same round.
  void expect_round(int number) {
    std::optional<int> port;
    for (const auto& each : all_) {
      if (!each) continue;
      const auto round = round_of(*each);
      if (!round) return;
      EXPECT_EQ(round->number, number);
      EXPECT_EQ(round->port, port.value_or(round->port));
      port = round->port;
    }
  }
  MachineFailure failure_of(MachineGroup& machine) {
    std::optional<MachineFailure> failure;
    serve_until([&] { return (failure = machine.take_failure()).has_value(); });
    return failure.value_or(MachineFailure());
  }
  std::string refusal_of(MachineGroup& machine) {
    serve_until([&] { return !machine.refusal().empty(); });
    return machine.refusal();
  }
  /// As a launcher that is killed: nothing is said.
  void kill(size_t machine) {
    all_[machine]->release();
    all_[machine].reset();
  }
  int connect_raw() const {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port_.text())));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return socket;
  }

  const accelerate::testing::HeldPort port_;
  std::vector<std::unique_ptr<MachineGroup>> all_;
  static inline int next_port_ = 20000;
};

TEST_F(Machines, ThoseThatJoinInAnyOrderBeginOneRoundWithOnePort) {
  for (const int rank : {2, 1, 0}) add(settings(rank)).be_ready();
  EXPECT_EQ(all_[2]->awaited(), "machines 1, 2");
  expect_round(0);
}

TEST_F(Machines, Machine0IsReachedByNameAndByIpv6) {
  for (const char* address : {"localhost", "::1"}) {
    for (const int rank : {1, 0}) {
      auto where = settings(rank, 2);
      where.address = address;
      add(where).be_ready();
    }
    expect_round(0);
    all_.clear();
  }
}

TEST(NetworkInterface, IsTheOneThatLeadsThere) {
  EXPECT_EQ(interface_to("127.0.0.1"), "lo");
  EXPECT_EQ(interface_to("localhost"), "lo");
  EXPECT_EQ(interface_to("no.such.host.invalid"), "");
  for (const char* address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"10.0.0.1", "fe80::1", "node", ""}) EXPECT_FALSE(is_loopback(address)) << address;
}

TEST(NetworkInterface, AnAddressForOthersIsNoLoopback) {
  EXPECT_EQ(address_for_others("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(address_for_others("no.such.host.invalid"), "no.such.host.invalid");
  const auto own = own_addresses();
  EXPECT_EQ(address_for_others("127.0.1.1"), own.size() == 1 ? own.front() : "127.0.1.1");
  for (const auto& address : own) EXPECT_EQ(address_for_others(address), address);
}

TEST_F(Machines, AFailureIsToldToAllOthersAndTheNextRoundBeginsWhenAllAreReady) {
  for (const int rank : {0, 1, 2}) add(settings(rank)).be_ready();
  expect_round(0);
  const MachineFailure failure{.rank = 3, .exit_code = 137, .by_itself = false, .text = "was killed\tby SIGKILL\n50%"};
  all_[1]->report(failure);
  for (const size_t other : {0, 2}) {
    const auto told = failure_of(*all_[other]);
    EXPECT_EQ(told.machine, 1);
    EXPECT_EQ(told.rank, 3);
    EXPECT_EQ(told.exit_code, 137);
    EXPECT_FALSE(told.by_itself);
    EXPECT_EQ(told.text, failure.text);
    EXPECT_FALSE(told.host.empty());
  }
  all_[1]->be_ready();
  all_[0]->be_ready();
  serve_until([&] { return all_[0]->awaited() == "machine 2"; });
  EXPECT_FALSE(all_[0]->take_round());
  all_[2]->report({.rank = 4, .exit_code = 1, .text = "of the round that is over"});
  all_[2]->be_ready();
  expect_round(1);
  EXPECT_FALSE(all_[0]->take_failure());
  EXPECT_FALSE(all_[1]->take_failure());
}

TEST_F(Machines, TheRunIsOverWhenAllHaveSucceeded) {
  for (const int rank : {0, 1, 2}) add(settings(rank)).be_ready();
  expect_round(0);
  all_[0]->report_success();
  all_[2]->report_success();
  serve_until([&] { return all_[0]->awaited() == "machine 1"; });
  EXPECT_FALSE(all_[2]->all_succeeded());
  all_[1]->report_success();
  serve_until([&] { return all_[0]->all_succeeded() && all_[1]->all_succeeded() && all_[2]->all_succeeded(); });
  all_[0].reset();  // machine 0 leaves first
  serve_until([&] { return true; });
  EXPECT_FALSE(all_[1]->take_failure());
}

TEST_F(Machines, OneThatIsLostIsNamedToAllAndCanBeReplaced) {
  for (const int rank : {0, 1, 2}) add(settings(rank)).be_ready();
  expect_round(0);
  kill(1);
  for (const size_t other : {0, 2}) {
    const auto told = failure_of(*all_[other]);
    EXPECT_EQ(told.machine, 1);
    EXPECT_FALSE(told.rank);
    EXPECT_NE(told.text.find("was lost"), std::string::npos) << told.text;
    all_[other]->be_ready();
  }
  add(settings(1)).be_ready();
  expect_round(1);
}

TEST_F(Machines, TheLossOfMachine0IsNamedAndItCanBeReplaced) {
  for (const int rank : {0, 1}) add(settings(rank, 2)).be_ready();
  expect_round(0);
  kill(0);
  const auto told = failure_of(*all_[1]);
  EXPECT_EQ(told.machine, 0);
  EXPECT_NE(told.text.find("was lost"), std::string::npos) << told.text;
  all_[1]->be_ready();
  add(settings(0, 2)).be_ready();
  expect_round(0);  // its first
}

TEST_F(Machines, OneThatLeavesIsNoLossAndCanBeReplaced) {
  for (const int rank : {0, 1}) add(settings(rank, 2)).be_ready();
  expect_round(0);
  all_[1]->report({.exit_code = 143, .text = "was stopped by SIGTERM"});
  all_[1].reset();
  EXPECT_EQ(failure_of(*all_[0]).text, "was stopped by SIGTERM");
  serve_until([&] { return true; });
  EXPECT_FALSE(all_[0]->take_failure());
  all_[0]->be_ready();
  add(settings(1, 2)).be_ready();
  expect_round(1);
}

TEST_F(Machines, EachLearnsItsRanksAndHowManyThereAre) {
  for (const int rank : {2, 0, 1}) add(settings(rank)).be_ready();
  for (const auto& [index, rank] : {std::pair(0, 2), std::pair(1, 0), std::pair(2, 1)}) {
    const auto round = round_of(*all_[static_cast<size_t>(index)]);
    ASSERT_TRUE(round);
    EXPECT_EQ(
        *round,
        (Round{.port = round->port, .machine = rank, .machines = 3, .first_rank = 2 * rank, .world_size = 6, .interface = "lo"}));
  }
}

TEST_F(Machines, ThoseWithoutARankAreNumberedAsTheyJoin) {
  for (int i = 0; i < 3; ++i) add(numbered(3, 3)).be_ready();
  std::set<int> machines, ranks;
  for (const auto& each : all_) {
    const auto round = round_of(*each);
    ASSERT_TRUE(round);
    machines.insert(round->machine);
    ranks.insert(round->first_rank);
    EXPECT_EQ(round->world_size, 6);
    EXPECT_EQ(round->machine == 0, each == all_[0]) << "the first to listen is machine 0";
  }
  EXPECT_EQ(machines, (std::set{0, 1, 2}));
  EXPECT_EQ(ranks, (std::set{0, 2, 4}));
}

TEST_F(Machines, ThatAreHeterogeneousHaveRanksBehindEachOther) {
  std::map<int, int> processes = {{0, 1}, {1, 4}, {2, 2}};
  for (const int rank : {2, 1, 0}) {
    auto machine = settings(rank);
    machine.processes = processes[rank];
    machine.heterogeneous = true;
    add(machine).be_ready();
  }
  for (const auto& [rank, first] : {std::pair(2, 5), std::pair(1, 1), std::pair(0, 0)}) {
    const auto round = round_of(*all_[static_cast<size_t>(2 - rank)]);
    ASSERT_TRUE(round);
    EXPECT_EQ(round->first_rank, first);
    EXPECT_EQ(round->world_size, 7);
  }
}

TEST_F(Machines, ThatSufficeBeginAfterTheLastCallAndBeginAnewWithOneThatJoinsLate) {
  for (int i = 0; i < 2; ++i) add(numbered(2, 3)).be_ready();
  const auto began = Clock::now();
  EXPECT_EQ(round_of(*all_[0])->world_size, 4);
  EXPECT_GE(Clock::now() - began, std::chrono::milliseconds(290));
  ASSERT_TRUE(round_of(*all_[1]));
  add(numbered(2, 3)).be_ready();
  for (const size_t running : {0, 1}) {
    const auto told = failure_of(*all_[running]);
    EXPECT_EQ(told.sequel, Sequel::regroup);
    EXPECT_NE(told.text.find("has joined"), std::string::npos) << told.text;
    all_[running]->be_ready();
  }
  for (const auto& each : all_) {
    const auto round = round_of(*each);
    ASSERT_TRUE(round);
    EXPECT_EQ(*round, (Round{.number = 1,
                             .port = round->port,
                             .machine = round->machine,
                             .machines = 3,
                             .first_rank = 2 * round->machine,
                             .world_size = 6,
                             .interface = "lo"}));
  }
}

TEST_F(Machines, ContinueWithoutOneThatIsLostAndKeepTheirOrder) {
  for (int i = 0; i < 3; ++i) add(numbered(2, 3)).be_ready();
  std::map<int, size_t> index_of;
  for (size_t i = 0; i < 3; ++i) index_of[round_of(*all_[i])->machine] = i;
  kill(index_of[1]);
  for (const int other : {0, 2}) {
    const auto told = failure_of(*all_[index_of[other]]);
    EXPECT_EQ(told.machine, 1);
    EXPECT_EQ(told.sequel, Sequel::regroup);
    all_[index_of[other]]->be_ready();
  }
  const auto round = round_of(*all_[index_of[2]]);
  ASSERT_TRUE(round);
  EXPECT_EQ(
      *round,
      (Round{
          .number = 1, .port = round->port, .machine = 1, .machines = 2, .first_rank = 2, .world_size = 4, .interface = "lo"}));
}

TEST_F(Machines, AFailedRankCountsAsARestartWhereMachinesMayLeave) {
  for (int i = 0; i < 2; ++i) add(numbered(1, 2)).be_ready();
  for (const auto& each : all_) ASSERT_TRUE(round_of(*each));
  all_[1]->report({.rank = 2, .exit_code = 7, .text = "failed"});
  EXPECT_EQ(failure_of(*all_[0]).sequel, Sequel::restart);
  for (const auto& each : all_) each->be_ready();
  EXPECT_EQ(round_of(*all_[0])->restarts, 1);
  ASSERT_TRUE(round_of(*all_[1]));
  // A collective failed, and only then its cause is known: the machine was lost.
  all_[0]->report({.rank = 0, .exit_code = 1, .by_itself = false, .text = "failed"});
  kill(1);
  EXPECT_EQ(failure_of(*all_[0]).sequel, Sequel::regroup);
  all_[0]->be_ready();
  const auto round = round_of(*all_[0]);
  ASSERT_TRUE(round);
  EXPECT_EQ(*round, (Round{.number = 2, .restarts = 1, .port = round->port, .world_size = 2}));
}

TEST_F(Machines, MoreThanThereMayBeWaitToReplaceOne) {
  for (int i = 0; i < 3; ++i) add(numbered(2, 2)).be_ready();
  ASSERT_TRUE(round_of(*all_[0]));
  serve_until([&] { return (all_[1]->awaited() + all_[2]->awaited()).find("a machine to replace") != std::string::npos; });
  const size_t spare = all_[1]->awaited().find("replace") != std::string::npos ? 1 : 2, member = 3 - spare;
  ASSERT_TRUE(round_of(*all_[member]));
  kill(member);
  EXPECT_EQ(failure_of(*all_[0]).sequel, Sequel::restart) << "all that the run needs were there";
  all_[0]->be_ready();
  EXPECT_EQ(round_of(*all_[spare])->machine, 1);
  add(numbered(2, 2)).be_ready();
  auto& second = *all_.back();
  serve_until([&] { return second.awaited().find("replace") != std::string::npos; });
  all_[0]->report_success();
  all_[spare]->report_success();
  serve_until([&] { return second.all_succeeded(); });
}

TEST_F(Machines, ASpareDoesNotTakeThePlaceOfOneWhoseRanksStillEnd) {
  for (int i = 0; i < 3; ++i) add(numbered(2, 2)).be_ready();
  ASSERT_TRUE(round_of(*all_[0]));
  serve_until([&] { return (all_[1]->awaited() + all_[2]->awaited()).find("a machine to replace") != std::string::npos; });
  const size_t spare = all_[1]->awaited().find("replace") != std::string::npos ? 1 : 2, member = 3 - spare;
  ASSERT_TRUE(round_of(*all_[member]));
  all_[0]->report({.rank = 0, .exit_code = 1, .text = "failed"});
  all_[0]->be_ready();
  serve_until([&] { return all_[member]->take_failure().has_value(); });
  EXPECT_FALSE(all_[0]->take_round()) << "the ranks of the other one may be saving";
  all_[member]->be_ready();
  EXPECT_EQ(round_of(*all_[member])->machine, 1);
  EXPECT_FALSE(all_[spare]->take_round());
}

TEST_F(Machines, WhereMachinesAreNumberedTheLossOfTheirHostIsTheEnd) {
  for (int i = 0; i < 2; ++i) add(numbered(1, 2)).be_ready();
  for (const auto& each : all_) ASSERT_TRUE(round_of(*each));
  kill(0);
  const auto told = failure_of(*all_[1]);
  EXPECT_EQ(told.sequel, Sequel::end);
  expect_parts(told.text, {"was lost", "it hosts the rendezvous"});
}

TEST_F(Machines, TooFewOfThoseThatAreNumberedSayHowManyJoined) {
  auto few = numbered(3, 4);
  few.patience = std::chrono::milliseconds(500);
  for (int i = 0; i < 2; ++i) add(few).be_ready();
  expect_parts(all_[0]->awaited(), {"1 of at least 3 have joined (127.0.0.1 is reached from this host alone)"});
  expect_parts(refusal_of(*all_[0]), {"2 of at least 3 machines have joined at 127.0.0.1:" + port_.text(), "same launch"});
  expect_parts(refusal_of(*all_[1]), {"did not begin"});
}

TEST_F(Machines, WhoDoesNotBelongToTheJobIsToldWhy) {
  add(settings(0, 2)).be_ready();
  const auto refusal = [&](MachineSettings settings) {
    auto& machine = add(settings);
    machine.be_ready();
    const std::string text = refusal_of(machine);
    all_.pop_back();
    return text;
  };
  auto other = settings(1, 2);
  other.job = "another";
  expect_parts(refusal(other), {"another job", "train", "another", "--main_process_port"});
  expect_parts(refusal(settings(1, 3)), {"--num_machines 2", "3"});
  other = settings(1, 2);
  other.processes = 4;
  expect_parts(refusal(other), {"starts 2 processes", "4", "--num_processes"});
  other.processes = 2;
  other.heterogeneous = true;
  expect_parts(refusal(other), {"without --heterogeneous", "with it"});
  other = settings(1, 2);
  other.rank.reset();
  other.hosts = false;
  expect_parts(refusal(other), {"with a --machine_rank", "without"});
  other = settings(1, 2);
  other.max_restarts = 1;
  expect_parts(refusal(other), {"--max_restarts 0", "1"});
  expect_parts(refusal(settings(7, 2)), {"--machine_rank 7", "1 to 1"});
  expect_parts(refusal(with_secret(settings(1, 2), "a secret of ours")), {"no shared secret"});
  add(settings(1, 2));  // not ready yet, so that no round begins
  serve_until([&] { return all_[1]->awaited() == "the other machines"; });
  add(settings(1, 2)).be_ready();
  serve_until([&] { return all_[2]->awaited().find("--machine_rank 1 is taken") != std::string::npos; });
  kill(1);  // then it is the one
  serve_until([&] { return all_[2]->awaited() == "the other machines" || all_[0]->awaited().empty(); });
  all_[1] = std::move(all_[2]);
  all_.pop_back();
  expect_round(0);
}

TEST_F(Machines, ASharedSecretIsProvedBothWays) {
  add(with_secret(settings(0, 2), "the secret of all")).be_ready();
  auto& wrong = add(with_secret(settings(1, 2), "another long secret"));
  wrong.be_ready();
  expect_parts(refusal_of(wrong), {"secret differs"});
  all_.pop_back();
  add(with_secret(settings(1, 2), "the secret of all")).be_ready();
  expect_round(0);
}

TEST_F(Machines, StrangersNeitherJoinNorDisturb) {
  add(settings(0, 2)).be_ready();
  std::vector<int> sockets;
  for (int i = 0; i < 100; ++i) sockets.push_back(connect_raw());  // a port scan that stays
  serve_until([&] { return true; });
  const std::string junk(1 << 20, 'x');
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string("\0\xff\t\n\n\n", 6), junk, std::string("hello\n"),
        std::string("start\t7\t7\nready\nfailed\t0\t1\tx\t1\t1\town\tboo\nover\n")}) {
    const int socket = connect_raw();
    const auto sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    EXPECT_NE(sent, 0);
    sockets.push_back(socket);
    serve_until([&] { return true; });
  }
  EXPECT_EQ(all_[0]->awaited(), "machine 1");
  EXPECT_FALSE(all_[0]->all_succeeded());
  for (const int socket : sockets) ::close(socket);
  add(settings(1, 2)).be_ready();
  expect_round(0);
}

TEST_F(Machines, AMachineThatReachesNobodySaysWhereAndWhy) {
  auto late = settings(1, 2);
  late.patience = std::chrono::milliseconds(600);
  add(late).be_ready();
  expect_parts(refusal_of(*all_[0]), {"127.0.0.1:" + port_.text(), "Connection refused"});
  all_.clear();
  late.rank = 0;
  add(late).be_ready();
  expect_parts(refusal_of(*all_[0]), {"machine 1 did not join", "--machine_rank"});
}

TEST_F(Machines, APortThatIsInUseIsAnErrorThatNamesIt) {
  add(settings(0, 2));
  expect_parts(accelerate::testing::message_of<accelerate::DistributedError>([&] { MachineGroup::join(settings(0, 2)); }),
               {"127.0.0.1:" + port_.text(), "already in use", "--main_process_port"});
}

}  // namespace
