#include <accelerate/data/prepared_loader.h>
#include <accelerate/distributed/random.h>
#include <torch/torch.h>

#include <forward_list>
#include <list>
#include <numeric>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderConfiguration;
using accelerate::LoaderPreparation;
using nlohmann::json;

/// 0 to n - 1 in a container of that kind: a vector is map-style, a list is iterable, a forward_list does not know its size.
template <class Container>
Container numbers_in(int64_t n) {
  Container numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// The loader of a case as it was before it was prepared.
DataLoader<at::Tensor> loader_of_case(const json& c, bool shuffle = false) {
  const accelerate::DataLoaderOptions options{
      .batch_size = c.at("bs").get<int64_t>(), .shuffle = shuffle, .drop_last = c.value("drop_last", false)};
  const auto n = c.at("n").get<int64_t>();
  const std::string kind = c.value("dataset", "map");
  if (kind == "iterable") return DataLoader(numbers_in<std::list<int64_t>>(n), options);
  if (kind == "unsized") return DataLoader(numbers_in<std::forward_list<int64_t>>(n), options);
  EXPECT_EQ(kind, "map") << "an unknown kind of dataset";
  return DataLoader(numbers_in<std::vector<int64_t>>(n), options);
}

json indices_in(const at::Tensor& batch) {
  return std::vector<int64_t>(batch.const_data_ptr<int64_t>(), batch.const_data_ptr<int64_t>() + batch.numel());
}

json batches_of_pass(const DataLoader<at::Tensor>& loader) {
  json batches = json::array();
  for (const auto& batch : loader) batches.push_back(indices_in(batch));
  return batches;
}

/// What `ask` answers; null where it is an error to ask.
json answer(const std::function<int64_t()>& ask) {
  try {
    return ask();
  } catch (const accelerate::Error&) {
    return nullptr;
  }
}

/// What the golden data says of a loader on one process.
json facts_of(const DataLoader<at::Tensor>& loader) {
  json facts = {{"batches", json::array()}, {"end", json::array()}, {"remainder", nullptr}};
  for (const auto& batch : loader) {
    if (loader.end_of_dataloader()) facts["end"].push_back(facts["batches"].size());
    facts["remainder"] = loader.remainder();
    facts["batches"].push_back(indices_in(batch));
  }
  facts["len"] = answer([&] { return loader.size(); });
  facts["total_batch_size"] = answer([&] { return loader.total_batch_size(); });
  facts["total_dataset_length"] = answer([&] { return loader.total_dataset_length(); });
  return facts;
}

/// The facts that `make` gives, or `{"error": what it said}`.
json facts_or_error(const std::function<json()>& make) {
  try {
    return make();
  } catch (const accelerate::Error& error) {
    return {{"error", error.what()}};
  }
}

bool same_facts(const json& ours, const json& theirs) {
  return ours.contains("error") || theirs.contains("error") ? ours.contains("error") && theirs.contains("error") : ours == theirs;
}

DataLoaderConfiguration configuration_of_case(const json& c) {
  return {.split_batches = c.at("split").get<bool>(), .even_batches = c.value("even", true)};
}

/// The loader that process `rank` of the case has, in this process.
DataLoader<at::Tensor> prepared_for_rank(const json& c, int rank) {
  LoaderPreparation preparation{.state = accelerate::ProcessState({.cpu = true}),
                                .configuration = configuration_of_case(c),
                                .num_processes = c.at("P").get<int>(),
                                .process_index = rank};
  preparation.configuration.dispatch_batches = false;
  return prepare_data_loader(loader_of_case(c), preparation);
}

std::string loader_case_name(json c, int rank) {
  c.erase("ranks");
  return c.dump() + " on process " + std::to_string(rank);
}

TEST(Golden, PreparedDataLoader) {
  golden::Tally tally("sharding.json, prepare_data_loader, by process");
  for (const auto& c : golden::read("sharding.json").value("prepare_data_loader", json::array())) {
    for (int rank = 0; rank < c.at("P").get<int>(); ++rank) {
      const json ours = facts_or_error([&] { return facts_of(prepared_for_rank(c, rank)); });
      tally.judge(loader_case_name(c, rank), same_facts(ours, c.at("ranks").at(static_cast<size_t>(rank))), ours.dump());
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, SkipFirstBatches) {
  golden::Tally tally("sharding.json, skip_first_batches, by process");
  for (const auto& c : golden::read("sharding.json").value("skip_first_batches", json::array())) {
    for (int rank = 0; rank < c.at("P").get<int>(); ++rank) {
      const json& theirs = c.at("ranks").at(static_cast<size_t>(rank));
      const json ours =
          facts_or_error([&] { return facts_of(skip_first_batches(prepared_for_rank(c, rank), c.at("skip").get<int64_t>())); });
      const bool beyond_the_end = theirs.value("message", "").find("__len__() should return >= 0") != std::string::npos;
      tally.judge(loader_case_name(c, rank), same_facts(ours, theirs), ours.dump(),
                  beyond_the_end ? "skip_first_batches past the end leaves a loader of size 0" : "");
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

class TogetherGoldenLoader : public Together {
 protected:
  /// The cases of a section that were run on as many processes as these.
  static std::vector<json> cases_of(const std::string& file, const std::string& section) {
    std::vector<json> cases;
    for (const auto& c : golden::read(file).value(section, json::array())) {
      if (c.at("P") == world()) cases.push_back(c);
    }
    return cases;
  }
  static std::string title(const std::string& section) {
    return section + ", " + std::to_string(world()) + " processes, process 0";
  }
  static const json& mine(const json& c) { return c.at("ranks").at(static_cast<size_t>(rank())); }
};

TEST_F(TogetherGoldenLoader, Dispatcher) {
  golden::Tally tally(title("sharding.json, dispatcher")), sizes(title("sharding.json, dispatcher, total_batch_size"));
  for (const auto& c : cases_of("sharding.json", "dispatcher")) {
    json theirs = mine(c);
    json ours = facts_or_error([&] {
      LoaderPreparation preparation{.state = state(), .configuration = configuration_of_case(c)};
      preparation.configuration.dispatch_batches = true;
      const auto loader = prepare_data_loader(loader_of_case(c), preparation);
      const auto skip = c.at("skip").get<int64_t>();
      return facts_of(skip > 0 ? skip_first_batches(loader, skip) : loader);
    });
    if (!theirs.contains("error") && !ours.contains("error")) {
      // Of a map-style one that skips batches neither side knows it: what skips them does not say how long they are.
      const bool known = c.at("skip") == 0 || c.at("dataset") != "map";
      sizes.judge(loader_case_name(c, rank()), ours.at("total_batch_size") == theirs.at("total_batch_size"), ours.dump(),
                  known ? "a dispatched loader knows its total_batch_size" : "");
      for (json* facts : {&ours, &theirs}) facts->erase("total_batch_size");
    }
    const bool left_without = theirs.contains("batches") && !theirs.at("batches").empty() && theirs.at("batches").back().empty();
    tally.judge(loader_case_name(c, rank()), same_facts(ours, theirs), ours.dump(),
                left_without ? "fewer samples than processes, dispatched" : "");
  }
  if (world() == 2 || world() == 3) {
    EXPECT_GT(tally.cases(), 0);
  }
}

TEST_F(TogetherGoldenLoader, ShuffledLoader) {
  golden::Tally tally(title("sampler.json, shuffled_loader"));
  for (const auto& c : cases_of("sampler.json", "shuffled_loader")) {
    accelerate::set_seed(c.at("seed").get<uint64_t>(), {.device_specific = c.at("device_specific").get<bool>()}, rank());
    LoaderPreparation preparation{.state = state(), .configuration = configuration_of_case(c)};
    preparation.configuration.use_seedable_sampler = c.at("seedable").get<bool>();
    if (!c.at("data_seed").is_null()) preparation.configuration.data_seed = c.at("data_seed").get<int64_t>();
    const auto loader = prepare_data_loader(loader_of_case(c, true), preparation);
    json epochs = json::array();
    for (size_t i = 0; i < mine(c).at("epochs").size(); ++i) epochs.push_back(batches_of_pass(loader));
    const auto numbers = mine(c).at("default_generator_rand_after").get<std::vector<float>>();
    const at::Tensor after = torch::rand({static_cast<int64_t>(numbers.size())});
    tally.judge(loader_case_name(c, rank()), epochs == mine(c).at("epochs") && torch::equal(after, torch::tensor(numbers)),
                epochs.dump() + " and then " + std::to_string(after[0].item<float>()));
  }
  if (world() <= 3) {
    EXPECT_GT(tally.cases(), 0);
  }
}

}  // namespace
