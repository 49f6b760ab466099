#include <torch/torch.h>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using nlohmann::json;

struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() { weight = register_parameter("weight", torch::full({1}, 0.5)); }
  torch::Tensor forward(const torch::Tensor& x) { return weight * x; }
  torch::Tensor weight;
};
TORCH_MODULE(OneWeight);

class TogetherGoldenTraining : public Together {
 protected:
  /// Two epochs, a row of accumulate_columns for each batch.
  static json two_epochs(const json& c) {
    const bool prepared_loader = c.at("prepare_loader");
    accelerate::Accelerator accelerator({.gradient_accumulation_steps = c.at("num_steps"),
                                         .gradient_accumulation = {.sync_with_dataloader = c.at("sync_with_dataloader"),
                                                                   .sync_each_batch = c.at("sync_each_batch")},
                                         .step_scheduler_with_optimizer = c.at("step_with_optimizer"),
                                         .dataloader = {.split_batches = c.at("split").get<bool>()},
                                         .timeout = std::chrono::seconds(60)});
    OneWeight net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    accelerate::LambdaLR decay(sgd, [](int64_t k) { return 1.0 / static_cast<double>(1 + k); });
    const auto numbers = torch::arange(1, c.at("n").get<int64_t>() + 1, torch::kFloat).unsqueeze(1);
    accelerate::DataLoader data(accelerate::make_tensor_dataset(numbers), {.batch_size = c.at("bs").get<int64_t>()});
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, decay);
    auto loader = prepared_loader ? accelerator.prepare(data) : data;

    json rows = json::array();
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (auto& [x] : loader) {
        auto scope = accelerator.accumulate(model);
        const double before = net->weight.item<double>();
        accelerator.backward(model(x).mean());
        const double gradient = net->weight.grad().item<double>();
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
        const double after = net->weight.item<double>();
        rows.push_back({epoch, int(accelerator.sync_gradients()), int(accelerator.gradient_state().end_of_dataloader()),
                        accelerator.gradient_state().step(), int(after != before), gradient, after,
                        scheduler.get_last_lr().front(), int(!net->weight.grad().defined()), decay.last_epoch()});
      }
    }
    return rows;
  }

  static bool same_rows(const json& ours, const json& theirs) {
    if (ours.size() != theirs.size()) return false;
    for (size_t i = 0; i < ours.size(); ++i) {
      for (size_t k = 0; k < ours[i].size(); ++k) {
        const double a = ours[i][k], b = theirs[i][k];
        if (std::abs(a - b) > 1e-6 * std::max(1.0, std::abs(b))) return false;
      }
    }
    return true;
  }
};

TEST_F(TogetherGoldenTraining, Accumulate) {
  golden::Tally tally("training.json, accumulate, " + std::to_string(world()) + " processes");
  const json all = golden::read("training.json");
  for (const auto& c : all.at("accumulate")) {
    if (c.at("P") != world()) continue;
    json named = c;
    named.erase("ranks");
    const json& theirs = c.at("ranks").at(static_cast<size_t>(rank()));
    const json ours = two_epochs(c);
    tally.judge(named.dump(), same_rows(ours, theirs), ours.dump() + " instead of " + theirs.dump());
  }
  EXPECT_GT(tally.cases(), 0);
}

struct DtypeSpyImpl : torch::nn::Module {
  DtypeSpyImpl() { linear = register_module("linear", torch::nn::Linear(3, 2)); }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = linear(x);
    inside = y.scalar_type();
    return y;
  }
  torch::nn::Linear linear{nullptr};
  torch::ScalarType inside = torch::kDouble;
};
TORCH_MODULE(DtypeSpy);

TEST(Golden, MixedPrecisionOnCpu) {
  golden::Tally tally("training.json, mixed_precision_on_cpu");
  const json all = golden::read("training.json");
  for (const auto& c : all.at("mixed_precision_on_cpu")) {
    const auto tensor = [&](const char* name) {
      json node = c.at(name);
      node["t"] = "tensor";
      return golden::value_of(node).get<torch::Tensor>();
    };
    accelerate::Accelerator accelerator(
        {.cpu = true, .mixed_precision = accelerate::parse_precision(c.at("mixed_precision"), "the golden data")});
    DtypeSpy net;
    accelerate::load_state_dict(*net, {{"linear.weight", tensor("weight")}, {"linear.bias", tensor("bias")}});
    auto model = accelerator.prepare(net);
    const auto output = model(torch::ones({1, 3}));
    const bool native = c.at("native_amp");
    const bool held = net->inside == (c.at("inside")[0] == "bfloat16" ? torch::kBFloat16 : torch::kFloat) &&
                      output.scalar_type() == torch::kFloat && net->linear->weight.scalar_type() == torch::kFloat &&
                      !accelerator.grad_scaler() &&
                      torch::allclose(output, tensor("output"), native ? 1e-2 : 1e-6, native ? 2e-3 : 0);
    tally.judge(c.at("mixed_precision"), held, "another output, or another dtype inside");
  }
  EXPECT_EQ(tally.cases(), 3);
}

}  // namespace
