// Collectives of tensors on a CUDA device beyond gather and reduce, and groups of ranks. Run by one process on one GPU, and by
// two that share it.
#include <torch/torch.h>

#include "support/together.h"

namespace {

using accelerate::Reduction;

class TogetherCudaGroups : public Together {
 protected:
  static torch::TensorOptions on_device() { return torch::TensorOptions().device(accelerator().device()); }
};

TEST_F(TogetherCudaGroups, ReduceScatterGivesEachRankItsPartOfTheSumAndTheMean) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kInt, torch::kLong}) {
    const auto mine = (torch::arange(2 * world(), on_device()) + rank()).to(dtype);
    const auto part = accelerator().reduce_scatter(mine);
    EXPECT_EQ(part.device(), accelerator().device());
    EXPECT_EQ(part.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(part, accelerator().reduce(mine).narrow(0, 2 * rank(), 2))) << c10::toString(dtype);
  }
  const auto mean =
      accelerator().reduce_scatter(torch::full({world(), 3}, rank(), on_device().dtype(torch::kFloat)), Reduction::mean);
  EXPECT_EQ(mean[0][2].item<double>(), (world() - 1) / 2.0);
}

TEST_F(TogetherCudaGroups, AllToAllSendsPartIToRankI) {
  const auto part = [](int from, int to) { return torch::full({2, 3}, 10 * from + to, on_device()); };
  std::vector<torch::Tensor> out, in;
  for (int r = 0; r < world(); ++r) out.push_back(part(rank(), r)), in.push_back(part(r, rank()));
  EXPECT_TRUE(torch::equal(accelerator().all_to_all(torch::cat(out)), torch::cat(in)));
}

TEST_F(TogetherCudaGroups, ATensorOfTheDeviceArrivesOnTheDevice) {
  if (world() == 1) return;
  const int next = (rank() + 1) % world(), before = (rank() + world() - 1) % world();
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kBool, torch::kLong}) {
    const auto make = [&](int r) { return torch::full({r + 1, 2}, r % 2, on_device().dtype(torch::kFloat)).to(dtype); };
    torch::Tensor got;
    if (rank() == 0) accelerate::send(state(), make(rank()), next);
    got = accelerate::recv(state(), before);
    if (rank() > 0) accelerate::send(state(), make(rank()), next);
    EXPECT_EQ(got.device(), accelerator().device());
    EXPECT_TRUE(torch::equal(got, make(before))) << c10::toString(dtype);
  }
}

TEST_F(TogetherCudaGroups, EveryCollectiveOfTheDeviceWorksInAGroup) {
  for (const int color : {0, rank()}) {
    const auto group = state().split_group(color);
    EXPECT_EQ(group.backend(), state().backend());
    const int size = group.num_processes();
    const auto ones = torch::ones({size, 4}, on_device());
    EXPECT_EQ(accelerate::reduce(group, ones, Reduction::sum).sum().item<int>(), 4 * size * size);
    EXPECT_EQ(accelerate::gather(group, ones).size(0), size * size);
    EXPECT_EQ(accelerate::reduce_scatter(group, ones).sum().item<int>(), 4 * size);
    EXPECT_EQ(accelerate::broadcast(group, ones * rank(), size - 1).max().item<int>(), color == 0 ? world() - 1 : rank());
    group.wait_for_everyone();
  }
}

}  // namespace
