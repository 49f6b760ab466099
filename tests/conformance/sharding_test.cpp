#include <accelerate/data/batch_sampler.h>
#include <accelerate/data/sharding.h>

#include "conformance/golden.h"
#include "data/collect.h"

namespace {

using accelerate::BatchSamplerShard;
using accelerate::IterableDatasetShard;
using nlohmann::json;

/// What the golden data calls a case, without its results.
std::string sharding_case_name(json c) {
  for (const char* result : {"len", "batches", "elements", "ranks"}) c.erase(result);
  return c.dump();
}

/// Holds the fields of `ours`, the lists of which have an entry for each process, against those of the case.
void judge_fields(golden::Tally& tally, const json& c, const json& ours) {
  bool held = true;
  for (const auto& [name, value] : ours.items()) held = held && c.at(name) == value;
  tally.judge(sharding_case_name(c), held, ours.dump());
}

/// The shards of all processes of `whole`, as the golden data writes them.
json shards_of(const std::shared_ptr<accelerate::BatchSampler>& whole, const json& c) {
  json ours = {{"len", json::array()}, {"batches", json::array()}};
  for (int rank = 0; rank < c.at("P").get<int>(); ++rank) {
    BatchSamplerShard shard(whole, {.num_processes = c.at("P").get<int>(),
                                    .process_index = rank,
                                    .split_batches = c.value("split", false),
                                    .even_batches = c.at("even").get<bool>()});
    ours["len"].push_back(shard.size().value());
    ours["batches"].push_back(collected::pass_of(shard));
  }
  return ours;
}

TEST(Golden, BatchSamplerShard) {
  golden::Tally tally("sharding.json, batch_sampler_shard");
  for (const auto& c : golden::read("sharding.json").value("batch_sampler_shard", json::array())) {
    const auto whole = std::make_shared<accelerate::SamplerBatches>(
        std::make_shared<accelerate::SequentialSampler>(c.at("n").get<int64_t>()),
        accelerate::BatchOptions{.batch_size = c.at("bs").get<int64_t>(), .drop_last = c.at("drop_last").get<bool>()});
    judge_fields(tally, c, shards_of(whole, c));
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, RaggedBatches) {
  golden::Tally tally("sharding.json, ragged_batches");
  for (const auto& c : golden::read("sharding.json").value("ragged_batches", json::array())) {
    const auto whole = std::make_shared<collected::GivenBatches>(c.at("input").get<std::vector<accelerate::Indices>>());
    judge_fields(tally, c, shards_of(whole, c));
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, IterableDatasetShard) {
  golden::Tally tally("sharding.json, iterable_dataset_shard");
  for (const auto& c : golden::read("sharding.json").value("iterable_dataset_shard", json::array())) {
    const auto length = c.at("n").get<int64_t>();
    json ours = {{"len", json::array()}, {"elements", json::array()}};
    for (int rank = 0; rank < c.at("P").get<int>(); ++rank) {
      const accelerate::IterableShardOptions options{.batch_size = c.at("bs").get<int64_t>(),
                                                     .drop_last = c.at("drop_last").get<bool>(),
                                                     .num_processes = c.at("P").get<int>(),
                                                     .process_index = rank,
                                                     .split_batches = c.at("split").get<bool>()};
      ours["len"].push_back(accelerate::iterable_shard_size(length, options));
      auto elements = accelerate::SequentialSampler(length).indices();
      ours["elements"].push_back(collected::all<int64_t>(IterableDatasetShard<int64_t>(std::move(elements), options)));
    }
    judge_fields(tally, c, ours);
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
