// The engine alone, with stores that fail, and random orders of use.
#include <accelerate/core/error.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "residency/copy_lane.h"
#include "residency/interception.h"
#include "residency/pager.h"
#include "residency/transfer.h"
#include "residency/use_order.h"
#include "support/refused_threads.h"

using accelerate::CheckpointError;
using namespace accelerate::detail;

namespace {

/// Bytes in memory that cannot always be read.
class MemoryStore final : public WeightStore {
 public:
  explicit MemoryStore(const at::Tensor& bytes) : WeightStore(bytes.nbytes()), bytes_(bytes.contiguous().clone()) {}
  std::string where() const override { return "a test"; }
  void read(void* to, uint64_t size, uint64_t offset) const override {
    reading = true;
    while (waits) std::this_thread::yield();
    if (fails) throw CheckpointError("the disk is broken");
    std::memcpy(to, static_cast<const char*>(bytes_.data_ptr()) + offset, size);
  }
  bool writable() const override { return true; }
  void write(const void* from) override { std::memcpy(bytes_.data_ptr(), from, bytes_.nbytes()); }

  std::atomic<bool> fails = false, waits = false;
  mutable std::atomic<bool> reading = false;

 private:
  at::Tensor bytes_;
};

/// Units of one weight each, beside copies that stay.
struct Weights {
  Weights(int count, uint64_t budget, int64_t largest = 4096)
      : pager(std::make_shared<Pager>(PagerOptions{.budget = budget, .threads = 2})) {
    intercept_operators();
    for (int i = 0; i < count; ++i) {
      resident.push_back(torch::randn({1 + torch::randint(largest, {1}).item<int64_t>()}));
      stores.push_back(std::make_shared<MemoryStore>(resident.back()));
      paged.push_back(resident.back().clone());
      set_key(paged.back(), true);
      const auto& storage = paged.back().storage();
      pager->add_unit(
          {{"weight" + std::to_string(i),
            c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage.unsafeGetStorageImpl()), stores.back()}});
    }
  }
  std::shared_ptr<Pager> pager;
  std::vector<at::Tensor> resident, paged;
  std::vector<std::shared_ptr<MemoryStore>> stores;
};

TEST(UseOrder, AnOrderIsExpectedAgainAndABackwardPassIsToldFromAForwardPass) {
  UseOrder order;
  for (int i = 0; i < 4; ++i) order.add_unit();
  for (int pass = 0; pass < 2; ++pass) {
    for (const int unit : {0, 1, 2, 3, 2, 1}) order.used(unit);
  }
  order.used(0);
  order.used(1);
  EXPECT_EQ(order.expected(4)[0], 2);
  order.used(2);
  order.used(3);
  order.used(2);
  EXPECT_EQ(order.expected(4)[0], 1);
}

TEST(UseOrder, WhatWasNeverSeenComesInTheOrderOfAdding) {
  UseOrder order;
  for (int i = 0; i < 3; ++i) order.add_unit();
  EXPECT_TRUE(order.used(0));
  EXPECT_FALSE(order.used(0));
  EXPECT_EQ(order.expected(9), (std::vector<int>{1, 2, 0}));
}

TEST(UseOrder, NothingIsExpectedAfterTheLastUnitsOfAPassThatHasEnded) {
  UseOrder order;
  for (int i = 0; i < 3; ++i) order.add_unit();
  for (int pass = 0; pass < 2; ++pass) {
    for (const int unit : {0, 1, 2, 1}) order.used(unit);
    order.ended();
    EXPECT_EQ(order.expected(9), std::vector<int>());
  }
  order.used(0);
  EXPECT_EQ(order.expected(1), std::vector<int>{1});
  for (const int unit : {1, 2, 1}) order.used(unit);
  EXPECT_EQ(order.expected(9), std::vector<int>()) << "neither the first unit of the next pass nor another one";
  order.used(0);  // this time a pass follows
  EXPECT_EQ(order.expected(1), std::vector<int>{1});
}

TEST(Pager, RandomUsesReadAndWriteWhatResidentTensorsWould) {
  torch::manual_seed(1);
  std::mt19937 random(1);
  const char* given = std::getenv("ACCELERATE_TEST_CASES");
  const int rounds = given ? std::atoi(given) : 200;
  for (int round = 0; round < rounds; ++round) {
    const int count = 1 + static_cast<int>(random() % 8);
    Weights weights(count, random() % 40000);
    for (int use = 0; use < 30; ++use) {
      const size_t i = random() % weights.paged.size(), j = random() % weights.paged.size();
      if (random() % 5 == 0) {
        weights.paged[i].mul_(1.5);
        weights.resident[i].mul_(1.5);
      } else {
        ASSERT_EQ((weights.paged[i].sum() + weights.paged[j].max()).item<float>(),
                  (weights.resident[i].sum() + weights.resident[j].max()).item<float>());
      }
      if (random() % 20 == 0) weights.pager->drop_all();
    }
  }
}

TEST(Pager, AHomeThatCannotBeReadIsAnErrorUntilItCan) {
  torch::manual_seed(1);
  Weights weights(3, 1);
  weights.stores[1]->fails = true;
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_EQ(weights.paged[0].sum().item<float>(), weights.resident[0].sum().item<float>());
    EXPECT_THROW(weights.paged[1].sum(), CheckpointError);
    EXPECT_THROW(weights.paged[0].sum() + weights.paged[1].max(), CheckpointError);
    EXPECT_EQ(weights.paged[2].sum().item<float>(), weights.resident[2].sum().item<float>());
  }
  weights.stores[1]->fails = false;
  EXPECT_EQ(weights.paged[1].sum().item<float>(), weights.resident[1].sum().item<float>());
}

TEST(CopyLane, BringsWhatThreadsReadByWayOfItsBuffersAndToldFailures) {
  torch::manual_seed(1);
  CopyLane lane(c10::kCPU, 2);
  const auto elements = torch::randint(256, {int64_t{30} << 20}, torch::kByte);
  const auto store = std::make_shared<MemoryStore>(elements);
  for (const bool fails : {false, true, false}) {
    store->fails = fails;
    const auto to = torch::zeros({elements.numel() + 100}, torch::kByte);
    const auto transfer = std::make_shared<Transfer>(std::vector<Transfer::Load>{{store, to, 100}}, &lane);
    IoThreadPool io_threads(3);
    io_threads.submit(transfer, false);
    if (fails) {
      EXPECT_THROW(transfer->finish(), CheckpointError);
    } else {
      transfer->finish();
      EXPECT_TRUE(torch::equal(to.narrow(0, 100, elements.numel()), elements));
      EXPECT_EQ(to.narrow(0, 0, 100).sum().item<int64_t>(), 0);
    }
  }
}

TEST(Pager, ThreadsMeetFailuresAndTheOthersGoOn) {
  torch::manual_seed(1);
  Weights weights(6, 20000);
  std::atomic<int> wrong = 0, failed = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int use = 0; use < 500; ++use) {
        const size_t i = random() % weights.paged.size();
        if (t == 0 && use % 7 == 0) weights.stores[3]->fails = !weights.stores[3]->fails;
        try {
          wrong += weights.paged[i].sum().item<float>() != weights.resident[i].sum().item<float>();
        } catch (const CheckpointError&) {
          failed += 1;
          wrong += i != 3;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(failed, 0);
}

TEST(Pager, WithoutThreadsOfItsOwnReadsWhatIsNeeded) {
  torch::manual_seed(1);
  std::optional<RefusedThreads> none(0);
  Weights weights(6, 20000);
  none.reset();
  for (int pass = 0; pass < 3; ++pass) {
    for (size_t i = 0; i < weights.paged.size(); ++i)
      EXPECT_EQ(weights.paged[i].sum().item<float>(), weights.resident[i].sum().item<float>());
  }
  EXPECT_EQ(weights.pager->counts().demanded, weights.pager->counts().loads) << "nobody is there to prefetch";
  EXPECT_LE(weights.pager->counts().peak, 20000u);
}

TEST(Pager, WhatIsBeingPrefetchedIsDroppedToo) {
  torch::manual_seed(1);
  Weights weights(2, 100000);
  weights.stores[1]->waits = true;
  weights.paged[0].sum();
  while (!weights.stores[1]->reading) std::this_thread::yield();
  std::jthread opens([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // in which one that does not wait has passed by
    weights.stores[1]->waits = false;
  });
  weights.pager->drop_all();
  const int64_t demanded = weights.pager->counts().demanded;
  EXPECT_EQ(weights.paged[1].sum().item<float>(), weights.resident[1].sum().item<float>());
  EXPECT_GT(weights.pager->counts().demanded, demanded) << "it was held";
}

TEST(Pager, AWeightThatIsGoneIsNotMissed) {
  torch::manual_seed(1);
  Weights weights(4, 20000, 1000);  // room for all
  const auto use_all = [&] {
    for (size_t i = 0; i < weights.paged.size(); ++i) {
      if (!weights.paged[i].defined()) continue;
      EXPECT_EQ(weights.paged[i].sum().item<float>(), weights.resident[i].sum().item<float>()) << i;
    }
  };
  for (int pass = 0; pass < 2; ++pass) use_all();
  weights.paged[1].reset();
  for (int pass = 0; pass < 3; ++pass) use_all();  // in which it learns that the weight is used no more
  const int64_t loads = weights.pager->counts().loads;
  for (int pass = 0; pass < 3; ++pass) {
    weights.pager->drop_all();
    use_all();
  }
  EXPECT_EQ(weights.pager->counts().loads, loads + 3 * 3) << "a weight that is gone is prefetched, or another one twice";
  EXPECT_LE(weights.pager->counts().peak, 20000u);
}

}  // namespace
