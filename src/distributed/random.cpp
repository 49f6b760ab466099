#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <accelerate/distributed/random.h>

#include <array>

namespace accelerate {

using namespace detail;
namespace {

at::Generator generator_for(const ProcessState& state, RngType type, const std::optional<at::Generator>& given) {
  switch (type) {
    case RngType::torch:
      return at::globalContext().defaultGenerator(at::kCPU);
    case RngType::cuda:
      if (!state.device().is_cuda()) {
        throw UsageError("synchronize_rng_states was asked for cuda, but this process runs on " + state.device().str() + ".");
      }
      return at::globalContext().defaultGenerator(state.device());
    case RngType::generator:
      break;
  }
  if (!given || !given->defined()) throw UsageError("synchronize_rng_states was asked for a generator, but was given none.");
  return *given;
}

}  // namespace

void set_seed(uint64_t seed, const SeedOptions& options) { set_seed(seed, options, read_launch_environment().process_index); }

void set_seed(uint64_t seed, const SeedOptions& options, int process_index) {
  at::manual_seed(seed + (options.device_specific ? static_cast<uint64_t>(process_index) : 0));
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, false);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setDeterministicCuDNN(true);
  }
}

const char* to_string(RngType type) {
  static constexpr std::array kNames = {"torch", "cuda", "generator"};
  return kNames[static_cast<size_t>(type)];
}

void synchronize_rng_states(const ProcessState& state, const std::vector<RngType>& types, std::optional<at::Generator> generator,
                            std::source_location where) {
  for (const auto type : types) {
    at::Generator mine = generator_for(state, type, generator);
    at::Tensor numbers;
    {
      const std::lock_guard lock(mine.mutex());
      numbers = mine.get_state();
    }
    // A generator's state is a CPU tensor, whatever device it draws for.
    numbers = broadcast(state, numbers, 0, where);
    const std::lock_guard lock(mine.mutex());
    mine.set_state(numbers);
  }
}

}  // namespace accelerate
