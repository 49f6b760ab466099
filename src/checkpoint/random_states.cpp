#include "checkpoint/random_states.h"

#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <mutex>
#include <random>

#include "checkpoint/value_file.h"

namespace accelerate::detail {
namespace {

constexpr size_t kWords = 624;  // of the Mersenne twister that both Python and numpy use
using TwisterWords = std::array<uint32_t, kWords>;

/// The twister's initialisation from one number.
TwisterWords words_of(uint32_t seed) {
  TwisterWords words{};
  for (uint32_t i = 0; i < kWords; ++i) {
    words[i] = seed;
    seed = 1812433253U * (seed ^ (seed >> 30)) + i + 1;
  }
  return words;
}

/// Its initialisation from an array, as its authors describe it: how Python seeds from a whole number.
TwisterWords words_of_array(const std::vector<uint32_t>& key) {
  TwisterWords words = words_of(19650218);
  const auto mixed = [&](size_t i, uint32_t factor) { return words[i] ^ ((words[i - 1] ^ (words[i - 1] >> 30)) * factor); };
  size_t i = 1, j = 0;
  const auto advance = [&] {
    if (++i < kWords) return;
    words[0] = words[kWords - 1];
    i = 1;
  };
  for (size_t k = std::max(kWords, key.size()); k > 0; --k) {
    words[i] = mixed(i, 1664525U) + key[j] + static_cast<uint32_t>(j);
    advance();
    if (++j == key.size()) j = 0;
  }
  for (size_t k = kWords - 1; k > 0; --k) {
    words[i] = mixed(i, 1566083941U) - static_cast<uint32_t>(i);
    advance();
  }
  words[0] = 0x80000000U;
  return words;
}

PickleNode* python_state(PickleTree& tree, uint64_t seed) {
  std::vector<uint32_t> key = {static_cast<uint32_t>(seed)};
  if (seed >> 32 != 0) key.push_back(static_cast<uint32_t>(seed >> 32));
  PickleItems words;
  for (const uint32_t word : words_of_array(key)) words.push_back(tree.integer(word));
  words.push_back(tree.integer(kWords));  // all of them are used up
  return tree.tuple({tree.integer(3), tree.tuple(std::move(words)), tree.none()});
}

PickleNode* numpy_state(PickleTree& tree, uint64_t seed) {
  const TwisterWords words = words_of(static_cast<uint32_t>(seed));
  std::string bytes(sizeof(words), '\0');
  std::memcpy(bytes.data(), words.data(), bytes.size());
  PickleNode* array =
      tree.array({.dtype = "<u4", .shape = {static_cast<int64_t>(kWords)}, .bytes = tree.bytes(std::move(bytes))});
  return tree.tuple({tree.text("MT19937"), array, tree.integer(kWords), tree.integer(0), tree.number(0)});
}

/// The same value in another tree.
PickleNode* copied(PickleTree& tree, const PickleNode& node) {
  const auto copy_items = [&](const PickleItems& items) {
    PickleItems copies;
    for (const auto* item : items) copies.push_back(copied(tree, *item));
    return copies;
  };
  switch (node.kind) {
    case PickleKind::kNone:
      return tree.none();
    case PickleKind::kBool:
      return tree.boolean(node.boolean());
    case PickleKind::kInt:
      return tree.integer(node.integer());
    case PickleKind::kFloat:
      return tree.number(node.number());
    case PickleKind::kText:
    case PickleKind::kBytes:
    case PickleKind::kBigInt:
      return tree.make(node.kind, node.text());
    case PickleKind::kTuple:
      return tree.tuple(copy_items(node.items()));
    case PickleKind::kList:
      return tree.list(copy_items(node.items()));
    case PickleKind::kArray: {
      PickleArray array = node.array();
      array.bytes = copied(tree, *array.bytes);
      return tree.array(std::move(array));
    }
    default:
      throw CheckpointError(fmt::format("Unexpected {} in the state of Python's random number generator.", to_string(node.kind)));
  }
}

at::Tensor numbers_from(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void give_numbers(at::Generator generator, const at::Tensor& numbers) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(numbers);
}

int64_t cuda_devices() { return at::hasCUDA() ? static_cast<int64_t>(c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount()) : 0; }

at::Generator cuda_generator(int64_t index) {
  return at::globalContext().defaultGenerator(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

}  // namespace

std::shared_ptr<const PythonRandomStates> PythonRandomStates::seeded(uint64_t seed) {
  auto states = std::make_shared<PythonRandomStates>();
  states->python = python_state(states->tree, seed);
  states->numpy = numpy_state(states->tree, seed);
  return states;
}

RandomStates current_random_states(int64_t step, std::shared_ptr<const PythonRandomStates> carried) {
  const auto& generator = at::globalContext().defaultGenerator(at::kCPU);
  RandomStates states{.step = step, .cpu = numbers_from(generator), .cuda = {}, .python = std::move(carried)};
  for (int64_t i = 0; i < cuda_devices(); ++i) states.cuda.push_back(numbers_from(cuda_generator(i)));
  if (!states.python) states.python = PythonRandomStates::seeded(generator.current_seed());
  return states;
}

void restore_random_states(const RandomStates& states) {
  give_numbers(at::globalContext().defaultGenerator(at::kCPU), states.cpu);
  const int64_t both = std::min<int64_t>(cuda_devices(), static_cast<int64_t>(states.cuda.size()));
  for (int64_t i = 0; i < both; ++i) give_numbers(cuda_generator(i), states.cuda[static_cast<size_t>(i)]);
}

void write_random_states(ByteSink& sink, const std::string& archive, const RandomStates& states) {
  ValueTree file;
  PickleTree& tree = file.tree();
  PicklePairs items = {{tree.text("step"), tree.integer(states.step)},
                       {tree.text("random_state"), copied(tree, *states.python->python)},
                       {tree.text("numpy_random_seed"), copied(tree, *states.python->numpy)},
                       {tree.text("torch_manual_seed"), file.node(states.cpu)}};
  if (!states.cuda.empty()) {
    PickleItems devices;
    for (const auto& numbers : states.cuda) devices.push_back(file.node(numbers));
    items.emplace_back(tree.text("torch_cuda_manual_seed"), tree.list(std::move(devices)));
  }
  tree.root = tree.dict(std::move(items));
  file.write(sink, archive);
}

RandomStates read_random_states(const ByteSource& source) {
  const TorchFile file(source);
  ValueReader reader(file);
  const auto entry = [&](const char* name) -> const PickleNode& {
    const auto* found = file.root().is_dict() ? file.root().find(name) : nullptr;
    if (!found) throw CheckpointError(fmt::format("{} has no {}: it holds no random states.", source.name(), name));
    return *found;
  };
  RandomStates states{
      .step = entry("step").integer(), .cpu = reader.tensor(entry("torch_manual_seed").tensor()), .cuda = {}, .python = {}};
  if (const auto* devices = file.root().find("torch_cuda_manual_seed")) {
    for (const auto* numbers : devices->items()) states.cuda.push_back(reader.tensor(numbers->tensor()));
  }
  auto python = std::make_shared<PythonRandomStates>();
  python->python = copied(python->tree, entry("random_state"));
  python->numpy = copied(python->tree, entry("numpy_random_seed"));
  states.python = std::move(python);
  return states;
}

}  // namespace accelerate::detail
