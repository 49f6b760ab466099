#include <torch/torch.h>

#include <list>
#include <numeric>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using accelerate::StateDict;
using accelerate::Value;
using nlohmann::json;

struct CountedNumbers {
  int64_t length;
  size_t size() const { return static_cast<size_t>(length); }
  int64_t get(size_t i) const { return static_cast<int64_t>(i); }
};

class TogetherGoldenMetrics : public Together {
 protected:
  /// What the case hands to gather_for_metrics for a batch of indices.
  static Value predictions_for(const json& c, const at::Tensor& b) {
    const std::string structure = c.at("structure");
    if (c.at("use_gather_object") && structure == "tensor") {
      Value::List numbers;
      for (int64_t i = 0; i < b.size(0); ++i) numbers.push_back(b[i].item<int64_t>());
      return numbers;
    }
    if (structure == "tensor") return b;
    if (structure == "rows") return torch::stack({b, 10 * b}, 1).to(torch::kFloat);
    if (structure == "nested")
      return StateDict{{"pred", b.to(torch::kFloat) / 2}, {"rest", Value::Tuple{b, Value::List{b + 100}}}};
    if (structure == "mixed") return Value::List{b.to(torch::kFloat), "text"};
    if (structure == "strings") {
      Value::List words;
      for (int64_t i = 0; i < b.size(0); ++i) words.push_back("s" + std::to_string(b[i].item<int64_t>()));
      return words;
    }
    throw std::runtime_error("unknown structure " + structure);
  }

  template <class Loader>
  static Value whole_loop(const json& c, accelerate::Accelerator& accelerator, Loader& data) {
    auto loader = accelerator.prepare(data);
    if (c.at("skip").get<int>() > 0) loader = accelerate::skip_first_batches(loader, c.at("skip").get<int64_t>());
    Value::List steps;
    for (auto& batch : loader) {
      Value given = predictions_for(c, batch);
      if (c.at("pad")) given = accelerator.pad_across_processes(given, {.pad_index = -1});
      steps.push_back(accelerator.gather_for_metrics(given, {.use_gather_object = c.at("use_gather_object").get<bool>()}));
    }
    return steps;
  }

  /// One for each configuration: joining the others for every case would take most of the time.
  using Accelerators = std::map<std::string, std::unique_ptr<accelerate::Accelerator>>;

  static accelerate::Accelerator& accelerator_for(const json& c, Accelerators& made) {
    auto& accelerator = made[json{c.at("split"), c.at("dispatch"), c.at("even")}.dump()];
    if (accelerator) return *accelerator;
    accelerator = std::make_unique<accelerate::Accelerator>(accelerate::AcceleratorOptions{
        .dataloader = {.split_batches = c.at("split").get<bool>(),
                       .dispatch_batches = c.at("dispatch").is_null() ? std::optional<bool>() : c.at("dispatch").get<bool>(),
                       .even_batches = c.at("even").get<bool>()},
        .timeout = std::chrono::seconds(60)});
    return *accelerator;
  }

  static Value run(const json& c, accelerate::Accelerator& accelerator) {
    const auto n = c.at("n").get<int64_t>();
    const accelerate::DataLoaderOptions options{.batch_size = c.at("bs").get<int64_t>(),
                                                .drop_last = c.at("drop_last").get<bool>()};
    if (c.at("dataset") == "map") {
      accelerate::DataLoader data(CountedNumbers{n}, options);
      return whole_loop(c, accelerator, data);
    }
    std::list<int64_t> numbers(static_cast<size_t>(n));  // one after the other only
    std::iota(numbers.begin(), numbers.end(), 0);
    accelerate::DataLoader data(std::move(numbers), options);
    return whole_loop(c, accelerator, data);
  }
};

TEST_F(TogetherGoldenMetrics, GatherForMetrics) {
  golden::Tally tally("metrics.json, " + std::to_string(world()) + " processes");
  const json all = golden::read("metrics.json");
  Accelerators made;
  for (const auto& c : all.at("gather_for_metrics")) {
    if (c.at("P") != world()) continue;
    const json& expected = c.contains("all_ranks") ? c.at("all_ranks") : c.at("ranks").at(static_cast<size_t>(rank()));
    const auto ours = golden::outcome_of([&] { return run(c, accelerator_for(c, made)); });
    bool held = expected.contains("error") ? !ours.error.empty() : ours.error.empty();
    if (held && expected.contains("steps")) {
      Value::List theirs;
      for (const auto& step : expected.at("steps")) theirs.push_back(golden::value_of(step));
      held = golden::same(ours.value, theirs);
    }
    json named = c;
    named.erase("all_ranks");
    named.erase("ranks");
    tally.judge(named.dump(), held, golden::to_string(ours) + " instead of " + expected.dump().substr(0, 300));
  }
  EXPECT_GT(tally.cases(), 0);
}

}  // namespace
