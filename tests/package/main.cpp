#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  accelerate::Accelerator accelerator;
  const torch::Tensor ones = torch::ones({2});
  if (accelerator.is_main_process()) {
    std::cout << "processes: " << accelerator.num_processes() << ", sum: " << ones.sum().item<float>() << "\n";
  }
  accelerator.wait_for_everyone();
}
