#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <accelerate/accelerator/accelerator.h>

#include "sections.h"

namespace accelerate::self_test {
namespace {

at::Tensor drawn(c10::Device device) { return at::randn({8}, at::TensorOptions(at::kFloat).device(device)); }

// The random numbers of each rank, one row per rank.
at::Tensor gathered(const Accelerator& accelerator, const at::Tensor& row) {
  return accelerator.gather(row.to(accelerator.device()).unsqueeze(0));
}

void expect_alike(const Accelerator& accelerator, Findings& findings, const at::Tensor& row, const std::string& what) {
  const auto rows = gathered(accelerator, row);
  findings.equal(rows, rows[0].expand_as(rows), what);
}

}  // namespace

void check_seeds(Accelerator& accelerator, Findings& findings) {
  for (const auto device : {c10::Device(at::kCPU), accelerator.device()}) {
    set_seed(42);
    const auto first = drawn(device);
    expect_alike(accelerator, findings, first, "ranks with the same seed draw the same numbers on " + device.str());
    set_seed(42);
    findings.equal(drawn(device), first, "a seed set again gives the same numbers on " + device.str());
    set_seed(42, {.device_specific = true});
    const auto rows = gathered(accelerator, drawn(device));
    for (int64_t i = 1; i < rows.size(0); ++i) {
      findings.expect(!rows[i].equal(rows[0]), "device_specific seeds differ between processes on " + device.str());
    }
  }
}

void check_random_states(Accelerator& accelerator, Findings& findings) {
  set_seed(1000 + static_cast<uint64_t>(accelerator.process_index()));
  accelerator.synchronize_rng_states({RngType::torch});
  expect_alike(accelerator, findings, drawn(at::kCPU), "torch's random state is that of the main process after synchronizing");
  auto generator = at::detail::createCPUGenerator(7 + static_cast<uint64_t>(accelerator.process_index()));
  accelerator.synchronize_rng_states({RngType::generator}, generator);
  expect_alike(accelerator, findings, at::randn({8}, generator), "a generator has the main process's state after synchronizing");
  if (accelerator.device().is_cuda()) {
    set_seed(2000 + static_cast<uint64_t>(accelerator.process_index()));
    accelerator.synchronize_rng_states({RngType::cuda});
    expect_alike(accelerator, findings, drawn(accelerator.device()), "the device's random state is that of the main process");
  }
}

}  // namespace accelerate::self_test
