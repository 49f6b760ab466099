// Two processes that meet once: what launch_time starts.
#include <accelerate/accelerate.h>

int main() {
  accelerate::Accelerator accelerator({.cpu = true});
  accelerator.wait_for_everyone();
}
