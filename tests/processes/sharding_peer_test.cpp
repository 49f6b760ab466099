// Sharded training beside the implementation that Python has, torch's fully_shard.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint_files/weight_sources.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"

namespace accelerate::testing {
namespace {

using detail::open_weight_file;

std::map<std::string, std::vector<float>> floats_in(const std::string& file) {
  std::map<std::string, std::vector<float>> tensors;
  const auto opened = open_weight_file(file);
  for (const auto& tensor : opened.tensors) {
    std::string bytes;
    tensor.read([&](const void* piece, uint64_t size) { bytes.append(static_cast<const char*>(piece), size); });
    auto& elements = tensors[tensor.name];
    elements.resize(bytes.size() / sizeof(float));
    std::memcpy(elements.data(), bytes.data(), bytes.size());
  }
  return tensors;
}

/// The largest difference between elements of two files that hold the same names and sizes; not a number where one is.
double difference_of(const std::string& a, const std::string& b) {
  const auto ours = floats_in(a), theirs = floats_in(b);
  EXPECT_FALSE(ours.empty()) << a;
  EXPECT_EQ(ours.size(), theirs.size()) << a;
  double largest = 0;
  for (const auto& [name, elements] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end() || found->second.size() != elements.size()) {
      ADD_FAILURE() << name << " of " << a << " is missing in " << b << " or of another size";
      continue;
    }
    for (size_t i = 0; i < elements.size(); ++i) {
      const double difference = std::abs(double{elements[i]} - double{found->second[i]});
      if (!(difference <= largest)) largest = difference;
    }
  }
  return largest;
}

void run_two(const std::vector<std::string>& command) {
  for (const auto& rank : start_ranks(command, 2)) {
    const auto result = rank->wait();
    ASSERT_EQ(result.exit_code, 0) << result.output << result.errors;
  }
}

TEST(ShardingPeer, LossesAndWeightsOfTenStepsAreThoseOfFullyShardOverGloo) {
  const TemporaryFolder folder;
  run_two({ACCELERATE_SCENES, "sharded_beside_python", folder.name()});
  run_two({ACCELERATE_PYTHON, ACCELERATE_SHARDING_PEER, folder.name()});
  for (const std::string rank : {"0", "1"}) {
    EXPECT_LE(difference_of(folder / ("losses_" + rank + ".safetensors"), folder / ("their_losses_" + rank + ".safetensors")),
              1e-5)
        << "losses of rank " << rank;
  }
  for (const std::string name : {"reshards", "keeps"}) {
    const std::string begin = folder / (name + "_begin.safetensors"), end = folder / (name + "_end.safetensors");
    EXPECT_GT(difference_of(begin, end), 0.01) << "it has learned nothing";
    EXPECT_LE(difference_of(end, folder / (name + "_theirs.safetensors")), 1e-5) << name;
  }
}

}  // namespace
}  // namespace accelerate::testing
