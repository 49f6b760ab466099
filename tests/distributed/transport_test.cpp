#include <accelerate/core/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "rendezvous/c10d_compat.h"

namespace {

/// Of a backend that writes collectives down and calculates them later, as XLA does.
struct EndedWork : c10d::Work {
  bool isCompleted() override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// What was asked of a LedgerTransport.
struct Ledger {
  std::vector<std::string> calls = {};
  bool broken = false;
};

/// The transport of a group of one that knows nothing of c10d's backends, for the CPU and for the device "meta".
class LedgerTransport : public accelerate::detail::Transport {
 public:
  explicit LedgerTransport(Ledger& ledger) : Transport(0, 1), ledger_(ledger) {}

  std::string backend_name(at::DeviceType) const override { return "ledger"; }
  bool runs_on_host(at::DeviceType device) const override { return device == at::kCPU; }
  accelerate::detail::StartedCollective barrier() override { return note("barrier"); }
  accelerate::detail::StartedCollective all_gather(at::Tensor& output, at::Tensor& input) override {
    output.copy_(input);
    return note("all_gather of " + input.device().str());
  }
  accelerate::detail::StartedCollective all_reduce(const at::Tensor& tensor, const c10d::ReduceOp&) override {
    return note("all_reduce of " + tensor.device().str());
  }
  accelerate::detail::StartedCollective broadcast(const at::Tensor& tensor, int from) override {
    return note("broadcast of " + tensor.device().str() + " from " + std::to_string(from));
  }
  accelerate::detail::StartedCollective reduce_scatter(at::Tensor& output, at::Tensor& input, const c10d::ReduceOp&) override {
    output.copy_(input);
    return note("reduce_scatter of " + input.device().str());
  }
  accelerate::detail::StartedCollective all_to_all(at::Tensor&, at::Tensor&) override { return note("all_to_all"); }
  accelerate::detail::StartedCollective send(const at::Tensor&, int, int) override { return note("send"); }
  accelerate::detail::StartedCollective receive(const at::Tensor&, int, int) override { return note("receive"); }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return {}; }
  void close(bool aborts) noexcept override { ledger_.calls.push_back(aborts ? "abort" : "close"); }

 private:
  accelerate::detail::StartedCollective note(const std::string& call) {
    ledger_.calls.push_back(call);
    if (ledger_.broken) throw std::runtime_error("the cable is cut");
    return c10::make_intrusive<EndedWork>();
  }

  Ledger& ledger_;
};

std::unique_ptr<accelerate::detail::Communicator> over_ledger(Ledger& ledger, bool owned) {
  accelerate::detail::GroupParts parts;
  parts.transport = std::make_unique<LedgerTransport>(ledger);
  parts.owned = owned;
  return std::make_unique<accelerate::detail::Communicator>(std::move(parts));
}

std::string error_of_reduce(accelerate::detail::Communicator& peers) {
  at::Tensor tensor = torch::ones({2});
  try {
    peers.all_reduce(tensor, c10d::ReduceOp::SUM, "reduce", std::source_location::current());
    return "";
  } catch (const accelerate::DistributedError& error) {
    return error.what();
  }
}

TEST(Transport, IsAllThatABackendForAFurtherDeviceImplements) {
  Ledger ledger;
  const auto here = std::source_location::current();
  const auto peers = over_ledger(ledger, true);
  at::Tensor tensor = torch::ones({2}, at::kMeta), all = torch::empty({2}, at::kMeta);
  peers->all_gather(all, tensor, "gather", here);
  peers->all_reduce(tensor, c10d::ReduceOp::SUM, "reduce", here);
  peers->broadcast(tensor, 0, "broadcast", here);
  peers->barrier("wait_for_everyone", here);
  EXPECT_EQ(peers->all_gather_bytes("words", "gather_object", here), std::vector<std::string>{"words"});
  EXPECT_EQ(ledger.calls, (std::vector<std::string>{"all_gather of meta", "all_reduce of meta", "broadcast of meta from 0",
                                                    "barrier", "all_gather of cpu"}));
}

TEST(Transport, WhatItThrowsIsToldByEveryLaterCallWhichSendsNothing) {
  Ledger ledger{.broken = true};
  const auto peers = over_ledger(ledger, true);
  const std::string first = error_of_reduce(*peers);
  EXPECT_NE(first.find("failed on rank 0 of 1: the cable is cut"), std::string::npos) << first;
  ledger.broken = false;
  EXPECT_NE(error_of_reduce(*peers).find("cannot run: the process group is unusable since " + first), std::string::npos);
  EXPECT_EQ(ledger.calls.size(), 1U);
}

TEST(Transport, IsClosedAtTheEndUnlessItIsTheApplicationsOwn) {
  Ledger ours, theirs;
  over_ledger(ours, true).reset();
  over_ledger(theirs, false).reset();
  EXPECT_EQ(ours.calls, std::vector<std::string>{"close"});
  EXPECT_EQ(theirs.calls, std::vector<std::string>());
}

TEST(Transport, IsAbortedAtTheEndOfAGroupThatFailedBecauseOtherRanksMayNeverJoinWhatWasStarted) {
  Ledger failed{.broken = true}, unwound;
  auto peers = over_ledger(failed, true);
  error_of_reduce(*peers);
  peers.reset();
  EXPECT_EQ(failed.calls.back(), "abort");
  try {
    const auto unwinding = over_ledger(unwound, true);
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(unwound.calls, std::vector<std::string>{"abort"});
  }
}

}  // namespace
