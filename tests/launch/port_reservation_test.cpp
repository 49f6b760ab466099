#include <accelerate/launch/port_reservation.h>

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <set>
#include <vector>

#include "launch/listener.h"
#include "support/run_program.h"

namespace accelerate::testing {
namespace {

TEST(PortReservation, APortIsRefusedWhenAnyAddressOfEitherFamilyHasAListener) {
  for (const char* address : {"0.0.0.0", "127.0.0.1", "::", "::1"}) {
    const Listener listener(address);
    EXPECT_FALSE(PortReservation().take(listener.port())) << address;
  }
}

TEST(PortReservation, APortIsToBeHadAgainWhenItsListenerIsGone) {
  int port = 0;
  {
    const Listener listener("127.0.0.1");
    port = listener.port();
  }
  EXPECT_TRUE(PortReservation().take(port));
}

TEST(PortReservation, AReservedPortIsRefusedToOthersUntilItIsGivenUp) {
  PortReservation first, second;
  const int port = first.take_any();
  EXPECT_FALSE(second.take(port));
  first.release();
  EXPECT_TRUE(second.take(port));
}

TEST(PortReservation, ItsOwnerCanListenOnAReservedPort) {
  PortReservation reservation;
  const int port = reservation.take_any();
  EXPECT_EQ(Listener("::", port).port(), port);
}

TEST(PortReservation, AChosenPortIsNoneThatTheSystemGivesToConnections) {
  int low = 0, high = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> low >> high;
  ASSERT_TRUE(low > 10'000 || high < 65'535) << "every port is the system's here";
  std::vector<std::unique_ptr<PortReservation>> reservations;
  std::set<int> ports;
  for (int i = 0; i < 50; ++i) {
    reservations.push_back(std::make_unique<PortReservation>());
    const int port = reservations.back()->take_any();
    EXPECT_TRUE(port < low || port > high) << port;
    ports.insert(port);
  }
  EXPECT_EQ(ports.size(), 50u);
}

TEST(PortReservation, AWorkerDoesNotInheritIt) {
  PortReservation first;
  const int port = first.take_any();
  RunningProgram child({"sleep", "1000"});
  wait_until("the program to run", [&] {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(child.pid()) + "/comm"), name);
    return name == "sleep";
  });
  first.release();
  EXPECT_TRUE(PortReservation().take(port));
}

std::unique_ptr<RunningProgram> start_meeting(const std::string& port) {
  std::vector<std::string> argv = {
      ACCELERATE_CLI, "launch", "--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1"};
  if (!port.empty()) argv.insert(argv.end(), {"--main_process_port", port});
  argv.emplace_back(ACCELERATE_MEET_AT_PORT);
  return std::make_unique<RunningProgram>(argv);
}

// Launches `count` at once, with the default port and with any; ranks of different launches must never meet.
void launch_at_once(int count) {
  std::vector<std::unique_ptr<RunningProgram>> launches;
  for (int i = 0; i < count; ++i) launches.push_back(start_meeting(i % 2 == 0 ? "" : "0"));
  for (auto& launch : launches) {
    const auto result = launch->wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }
}

void launch_one_after_another(int count) {
  for (int i = 0; i < count; ++i) {
    const auto result = start_meeting("")->wait();
    EXPECT_EQ(result.exit_code, 0) << result.errors;
  }
}

TEST(ManyLaunches, AtOnceDoNotTakeEachOthersPorts) {
  for (int wave = 0; wave < 2; ++wave) launch_at_once(25);
}

TEST(ManyLaunches, OneAfterAnotherAllFindAPort) { launch_one_after_another(20); }

TEST(ManyLaunchesSoak, AtOnceDoNotTakeEachOthersPorts) { launch_at_once(200); }

TEST(ManyLaunchesSoak, OneAfterAnotherAllFindAPort) { launch_one_after_another(200); }

}  // namespace
}  // namespace accelerate::testing
