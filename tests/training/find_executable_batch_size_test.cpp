#include <accelerate/core/error.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/error_text.h"

namespace {

using accelerate::find_executable_batch_size;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

TEST(FindExecutableBatchSize, GoesDownByTenthsUntilItFits) {
  std::vector<int64_t> tried;
  auto train = find_executable_batch_size([&](int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 8) TORCH_CHECK_WITH(OutOfMemoryError, false, "not enough");
    return batch_size;
  });
  EXPECT_EQ(train(), 8);
  EXPECT_EQ(tried,
            (std::vector<int64_t>{128, 115, 103, 92, 82, 73, 65, 58, 52, 46, 41, 36, 32, 28, 25, 22, 19, 17, 15, 13, 11, 9, 8}));
  EXPECT_EQ(train.batch_size(), 8);
  tried.clear();
  EXPECT_EQ(train(), 8);
  EXPECT_EQ(tried, std::vector<int64_t>{8}) << "the next call begins where the last ended";
}

TEST(FindExecutableBatchSize, EverythingThatTellsOfMissingMemoryCounts) {
  const std::vector<std::function<void()>> failures = {
      [] { throw std::bad_alloc(); },
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "any text"); },
      [] { TORCH_CHECK(false, "CUDA out of memory. Tried to allocate 2 GiB"); },
      [] { TORCH_CHECK(false, "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear"); },
      [] { throw std::runtime_error("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"); },
      // As a loader says it: with the sample in the text, and what was thrown within.
      [] {
        try {
          throw std::bad_alloc();
        } catch (...) {
          std::throw_with_nested(accelerate::Error("std::bad_alloc (while reading sample 3)"));
        }
      },
      // The real one.
      [] { torch::empty({int64_t{1} << 50}); },
  };
  for (size_t i = 0; i < failures.size(); ++i) {
    auto train = find_executable_batch_size(
        [&](int64_t batch_size) {
          if (batch_size == 10) failures[i]();
          return batch_size;
        },
        {.starting_batch_size = 10});
    EXPECT_EQ(train(), 9) << i;
  }
}

TEST(FindExecutableBatchSize, OtherErrorsPassThrough) {
  auto broken = find_executable_batch_size([](int64_t) { throw std::invalid_argument("shape"); });
  EXPECT_THROW(broken(), std::invalid_argument);
  EXPECT_EQ(broken.batch_size(), 128);
  auto peer =
      find_executable_batch_size([](int64_t) { throw accelerate::DistributedError("rank 1: CUDA out of memory. Tried"); });
  EXPECT_THROW(peer(), accelerate::DistributedError);
}

TEST(FindExecutableBatchSize, ZeroIsAnError) {
  auto never = find_executable_batch_size([](int64_t) { throw std::bad_alloc(); }, {.starting_batch_size = 4});
  expect_parts(message_of<accelerate::UsageError>([&] { never(); }), {"No executable batch size found, reached zero"});
}

TEST(FindExecutableBatchSize, ArgumentsAreThereAgainForEveryTry) {
  auto train = find_executable_batch_size(
      [](int64_t batch_size, std::vector<int>& seen, const std::string& name) {
        seen.push_back(static_cast<int>(batch_size));
        if (batch_size > 2) throw std::bad_alloc();
        return name;
      },
      {.starting_batch_size = 4});
  std::vector<int> seen;
  EXPECT_EQ(train(seen, std::string("still here")), "still here");
  EXPECT_EQ(seen, (std::vector<int>{4, 3, 2}));
}

TEST(FindExecutableBatchSize, TheNextSizeMayBeChosen) {
  int64_t next = 64;
  auto train = find_executable_batch_size(
      [](int64_t batch_size) {
        if (batch_size > 10) throw std::bad_alloc();
        return batch_size;
      },
      {.starting_batch_size = 64, .reduce_batch_size_fn = [&] { return next /= 2; }});
  EXPECT_EQ(train(), 8);
}

}  // namespace
