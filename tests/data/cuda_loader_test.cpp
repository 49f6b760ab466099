// What a CUDA device adds to loaders. Run by one process on one GPU, where there is one.
#include <accelerate/data/prepared_loader.h>
#include <accelerate/data/tensor_dataset.h>
#include <torch/torch.h>

#include "support/together.h"

class TogetherCudaLoader : public Together {};

TEST_F(TogetherCudaLoader, BatchesAreOnTheDeviceAndWholeWhileTheDeviceIsBusy) {
  const auto numbers = torch::arange(1 << 16).view({-1, 16});
  const auto weight = torch::randn({2048, 2048}, accelerator().device());
  for (const bool non_blocking : {false, true}) {
    for (const bool pin_memory : {false, true}) {
      for (const int workers : {0, 2}) {
        const accelerate::DataLoader loader(accelerate::TensorDataset(numbers, numbers.select(1, 0)),
                                            {.batch_size = 64, .num_workers = workers, .pin_memory = pin_memory});
        const auto prepared = prepare_data_loader(loader, {.state = state(), .configuration = {.non_blocking = non_blocking}});
        auto sum = torch::zeros({2}, torch::TensorOptions().dtype(torch::kLong).device(accelerator().device()));
        for (auto& [data, target] : prepared) {
          EXPECT_EQ(data.device(), accelerator().device());
          // The device is behind: what follows reads the batch long after the loop has let it go.
          weight.matmul(weight);
          sum += torch::stack({data.sum(), target.sum()});
        }
        const auto got = sum.cpu();
        EXPECT_EQ(got[0].item<int64_t>(), numbers.sum().item<int64_t>()) << non_blocking << pin_memory << workers;
        EXPECT_EQ(got[1].item<int64_t>(), numbers.select(1, 0).sum().item<int64_t>()) << non_blocking << pin_memory << workers;
      }
    }
  }
}

TEST_F(TogetherCudaLoader, PinnedBatchesArePinnedUntilTheyAreSent) {
  const auto numbers = torch::arange(64);
  const accelerate::DataLoader loader(accelerate::TensorDataset(numbers, numbers), {.batch_size = 8, .pin_memory = true});
  for (auto& [data, target] : loader) EXPECT_TRUE(data.is_pinned() && target.is_pinned());
}

TEST_F(TogetherCudaLoader, DispatchedBatchesAreOnTheDevice) {
  const auto numbers = torch::arange(64);
  const accelerate::DataLoader loader(accelerate::TensorDataset(numbers, numbers), {.batch_size = 8});
  const auto prepared = prepare_data_loader(loader, {.state = state(), .configuration = {.dispatch_batches = true}});
  for (auto& [data, target] : prepared) EXPECT_TRUE(data.is_cuda() && target.is_cuda());
}
