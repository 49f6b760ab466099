// Who gets into a job, and from where it can be reached.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace {

using accelerate::testing::HeldPort;
using accelerate::testing::ProgramResult;
using accelerate::testing::RunningProgram;
using accelerate::testing::TemporaryFolder;
using accelerate::testing::Variables;
using accelerate::testing::wait_until;

/// Jobs of several hosts at one address and port. Every process is a host of its own, and no launcher ends the others.
class Meeting {
 public:
  explicit Meeting(std::string address = "127.0.0.1") : address_(std::move(address)) {}

  std::unique_ptr<RunningProgram> start(int rank, Variables variables = {}, const std::string& program = ACCELERATE_PROBE,
                                        const std::string& scene = "sum") const {
    variables.insert({{"ACCELERATE_USE_CPU", "true"},
                      {"OMP_NUM_THREADS", "1"},
                      {"GLOO_SOCKET_IFNAME", "lo"},
                      {"RANK", std::to_string(rank)},
                      {"WORLD_SIZE", "2"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "1"},
                      {"GROUP_RANK", std::to_string(rank)},
                      {"MASTER_ADDR", address_},
                      {"MASTER_PORT", port()}});
    return std::make_unique<RunningProgram>(std::vector{program, scene},
                                            accelerate::testing::RunOptions{.environment = variables});
  }

  const std::string& port() const { return port_.text(); }

 private:
  const std::string address_;
  const HeldPort port_;
};

void expect_refused(const ProgramResult& result, const std::string& why) {
  EXPECT_EQ(result.exit_code, 3) << result.output << result.errors;
  EXPECT_NE(result.output.find("was refused at 127.0.0.1:"), std::string::npos) << result.output << result.errors;
  EXPECT_NE(result.output.find(why), std::string::npos) << result.output << result.errors;
}

void expect_sum(RunningProgram& program, int sum) {
  const auto result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_NE(result.output.find(" sum " + std::to_string(sum) + "\n"), std::string::npos) << result.output << result.errors;
}

/// The probe under another name, as another program.
class OtherProgram {
 public:
  OtherProgram() { std::filesystem::create_symlink(ACCELERATE_PROBE, path()); }
  std::string path() const { return folder_ / "other"; }

 private:
  TemporaryFolder folder_;
};

TEST(Rendezvous, ThatTakesLongSaysWhomItWaitsFor) {
  const Meeting meeting;
  const Variables soon = {{"ACCELERATE_RENDEZVOUS_WARNING_SECONDS", "1"}, {"WORLD_SIZE", "3"}};
  const auto await_notice = [](const RunningProgram& rank, const std::string& pattern) {
    wait_until("'" + pattern + "'", [&] { return std::regex_search(rank.errors(), std::regex(pattern)); });
  };
  const std::string place = "127.0.0.1:" + meeting.port() + " \\(MASTER_ADDR and MASTER_PORT\\)";
  const auto second = meeting.start(1, soon);
  await_notice(*second, "accelerate: Rank 1 of 3 has waited \\d+ s for rank 0 at " + place + ": Connection refused\\.");
  const auto first = meeting.start(0, soon);
  await_notice(*first, "accelerate: Rank 0 of 3 has waited \\d+ s at " + place + " for these ranks: (1, )?2\\.");
  const auto third = meeting.start(2, soon);
  for (const auto& rank : {&first, &second, &third}) expect_sum(**rank, 6);
}

TEST(UnrelatedProcesses, OfAnotherJobAreRefusedOnBothSidesAndTheJobStarts) {
  const OtherProgram other;
  const Meeting meeting;
  const auto first = meeting.start(0);
  expect_refused(meeting.start(1, {}, other.path())->wait(),
                 "rank 0 there belongs to another job: rank 0 of 2 of program probe, no run id");
  expect_refused(meeting.start(2, {{"WORLD_SIZE", "3"}})->wait(),
                 "rank 0 there belongs to another job: rank 0 of 2 of program probe");
  expect_refused(meeting.start(1, {{"ACCELERATE_RUN_ID", "b"}})->wait(),
                 "rank 0 there belongs to another job: rank 0 of 2 of program probe, no run id");
  const auto second = meeting.start(1);
  expect_sum(*first, 3);
  expect_sum(*second, 3);
  for (const char* told : {"accelerate: rank 1 of 2 of program other, no run id", "accelerate: rank 2 of 3 of program probe",
                           "accelerate: rank 1 of 2 of program probe, run id b"}) {
    EXPECT_EQ(RunningProgram::occurrences(first->errors(), told), 1) << told << " in " << first->errors();
  }
}

TEST(UnrelatedProcesses, ProgramsOfDifferentNamesAreOneJobByItsRunId) {
  const OtherProgram other;
  const Meeting meeting;
  const auto first = meeting.start(0, {{"ACCELERATE_RUN_ID", "a"}});
  const auto second = meeting.start(1, {{"ACCELERATE_RUN_ID", "a"}}, other.path());
  expect_sum(*first, 3);
  expect_sum(*second, 3);
}

TEST(UnrelatedProcesses, TheSecondToClaimARankIsRefusedOnBothSides) {
  const Meeting meeting;
  const Variables three = {{"WORLD_SIZE", "3"}};
  const auto first = meeting.start(0, three), one = meeting.start(1, three), again = meeting.start(1, three);
  const auto refused = [](const RunningProgram& program) {
    return program.output().find("already claimed") != std::string::npos;
  };
  wait_until("one of two to be refused", [&] { return refused(*one) || refused(*again); });
  const auto last = meeting.start(2, three);
  expect_refused((refused(*one) ? one : again)->wait(), "that rank is already claimed, by rank 1 of 3 of program probe");
  for (const auto* program : {&first, &last, refused(*one) ? &again : &one}) expect_sum(**program, 6);
  EXPECT_EQ(RunningProgram::occurrences(first->errors(), "already claimed"), 1) << first->errors();
}

constexpr const char* kSecret = "a secret of thirty characters.";

TEST(UnrelatedProcesses, WithoutTheSharedSecretAreRefusedOnBothSides) {
  const TemporaryFolder folder;
  const std::string file = folder / "secret";
  std::ofstream(file) << kSecret << "\n";
  const Meeting meeting;
  const auto first = meeting.start(0, {{"ACCELERATE_RENDEZVOUS_SECRET", kSecret}});
  const auto none = meeting.start(1), wrong = meeting.start(1, {{"ACCELERATE_RENDEZVOUS_SECRET", "another secret, as long"}});
  expect_refused(none->wait(), "rank 0 has a shared secret, but this rank has none");
  expect_refused(wrong->wait(), "the shared secret of this rank differs from that of rank 0");
  const auto second = meeting.start(1, {{"ACCELERATE_RENDEZVOUS_SECRET_FILE", file}});
  expect_sum(*first, 3);
  expect_sum(*second, 3);
  EXPECT_EQ(RunningProgram::occurrences(first->errors(), "was refused"), 2) << first->errors();
}

TEST(UnrelatedProcesses, ARankWithASecretDoesNotJoinAJobWithoutOne) {
  const Meeting meeting;
  const auto first = meeting.start(0);
  expect_refused(meeting.start(1, {{"ACCELERATE_RENDEZVOUS_SECRET", kSecret}})->wait(), "rank 0 has no shared secret");
  const auto second = meeting.start(1);
  expect_sum(*first, 3);
  expect_sum(*second, 3);
}

TEST(UnrelatedProcesses, AClaimForgedWithoutTheSecretStopsTheStart) {
  const Meeting meeting;
  const auto first = meeting.start(0, {{"ACCELERATE_RENDEZVOUS_SECRET", kSecret}});
  const auto forger = accelerate::testing::run_program({ACCELERATE_PYTHON, ACCELERATE_FORGED_CLAIM, meeting.port()});
  EXPECT_EQ(forger.exit_code, 0) << forger.errors;
  const auto result = first->wait();
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(result.output.find("that failed authentication with the shared secret"), std::string::npos) << result.output;
}

TEST(UnrelatedProcesses, ASecretThatCannotProtectIsAnError) {
  const Meeting meeting;
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"ACCELERATE_RENDEZVOUS_SECRET", ""}}, "ACCELERATE_RENDEZVOUS_SECRET gives a secret of 0 characters"},
      {{{"ACCELERATE_RENDEZVOUS_SECRET_FILE", "/nowhere"}}, "ACCELERATE_RENDEZVOUS_SECRET_FILE=/nowhere cannot be read"}};
  for (const auto& [variables, expected] : cases) {
    const auto result = meeting.start(0, variables)->wait();
    EXPECT_EQ(result.exit_code, 3);
    EXPECT_NE(result.output.find(expected), std::string::npos) << expected << " in " << result.output;
  }
}

/// The addresses at which somebody listens on `port`, as /proc writes them.
std::vector<std::string> listeners(const std::string& port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line, number, local, remote, state; std::getline(file, line);) {
      std::istringstream(line) >> number >> local >> remote >> state;
      const auto colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == std::stoi(port))
        found.push_back(local.substr(0, colon));
    }
  }
  return found;
}

std::vector<std::string> wait_for_listeners(const std::string& port) {
  std::vector<std::string> found;
  wait_until("rank 0 to listen", [&] { return !(found = listeners(port)).empty(); });
  return found;
}

const std::vector<std::string> kLoopback = {"0100007F"};

TEST(Listening, OfOneHostIsOnItsLoopbackInterfaceWhateverItsAddress) {
  const Meeting meeting("192.0.2.1");  // nobody has it
  const Variables together = {{"LOCAL_WORLD_SIZE", "2"}};
  const auto first = meeting.start(0, together);
  EXPECT_EQ(wait_for_listeners(meeting.port()), kLoopback);
  const auto second = meeting.start(1, {{"LOCAL_WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}});
  expect_sum(*first, 3);
  expect_sum(*second, 3);
}

TEST(Listening, OfSeveralHostsIsOnlyAtTheAddressThatIsNeeded) {
  for (const auto& [address, seen] :
       std::vector<std::pair<std::string, std::string>>{{"127.0.0.2", "0200007F"}, {"localhost", "0100007F"}}) {
    const Meeting meeting(address);
    const auto first = meeting.start(0);
    EXPECT_EQ(wait_for_listeners(meeting.port()), std::vector{seen});
    const auto second = meeting.start(1);
    expect_sum(*first, 3);
    expect_sum(*second, 3);
    EXPECT_EQ(first->errors().find("listens at all addresses"), std::string::npos) << first->errors();
  }
}

TEST(Listening, AtAllAddressesBecauseNoneIsKnownIsSaid) {
  const Meeting meeting("192.0.2.1");
  const auto result = meeting.start(0, {}, ACCELERATE_PROBE, "nobody_comes")->wait();
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_NE(
      result.errors.find("MASTER_ADDR=192.0.2.1 is not an address of this host: rank 0 listens at all addresses of this host"),
      std::string::npos)
      << result.errors;
  EXPECT_NE(result.output.find("these ranks did not join within 0 s: 1."), std::string::npos) << result.output;
}

TEST(UnrelatedProcesses, ProgramsThatFollowEachOtherInOneLaunchAreNone) {
  const auto result =
      accelerate::testing::run_program({ACCELERATE_CLI, "launch", "--cpu", "--main_process_port", "0", "--num_processes", "3",
                                        "--num_cpu_threads_per_process", "1", "sh", "-c", "$0 sum && $0 sum", ACCELERATE_PROBE});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.errors;
  EXPECT_EQ(RunningProgram::occurrences(result.output, " sum 6\n"), 6) << result.output << result.errors;
}

}  // namespace
