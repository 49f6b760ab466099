#include <numeric>

#include "conformance/communication_cases.h"
#include "support/together.h"

namespace {

using namespace communication_cases;
using nlohmann::json;

class TogetherGoldenCommunication : public Together {
 protected:
  /// The cases of a kind that were recorded with as many processes.
  static std::vector<json> cases(const std::string& kind) {
    std::vector<json> found;
    const json all = golden::read("communication.json");
    for (const auto& c : all.at(kind)) {
      if (c.at("processes") == world()) found.push_back(c);
    }
    return found;
  }
};

accelerate::DdpOptions golden_ddp_options(const json& c) {
  accelerate::DdpOptions ddp;
  ddp.comm_hook = c.at("hook") == "power_sgd" ? accelerate::CommHook::power_sgd : accelerate::CommHook::batched_power_sgd;
  if (c.contains("wrapper")) ddp.comm_wrapper = accelerate::CommHook::fp16;
  auto& options = ddp.comm_state_option;
  const json& given = c.at("options");
  options.matrix_approximation_rank = given.at("matrix_approximation_rank");
  options.start_powerSGD_iter = given.at("start_powerSGD_iter");
  options.min_compression_rate = given.value("min_compression_rate", options.min_compression_rate);
  options.use_error_feedback = given.value("use_error_feedback", options.use_error_feedback);
  options.warm_start = given.value("warm_start", options.warm_start);
  options.orthogonalization_epsilon = given.value("orthogonalization_epsilon", options.orthogonalization_epsilon);
  options.random_seed = given.value("random_seed", options.random_seed);
  options.batch_tensors_with_same_shape = given.value("batch_tensors_with_same_shape", options.batch_tensors_with_same_shape);
  return ddp;
}

TEST_F(TogetherGoldenCommunication, PowerSgdMakesOfGradientsWhatPyTorchsHooksMake) {
  golden::Tally tally("communication.json, PowerSGD on " + std::to_string(world()));
  for (const auto& c : cases("power_sgd")) {
    const auto shapes = c.at("shapes").get<std::vector<std::vector<int64_t>>>();
    Parameters net(shapes);
    accelerate::Model<ParametersImpl> model(net.ptr(), state(), {.ddp = golden_ddp_options(c)}, std::source_location::current());
    double furthest = 0;
    for (int iteration = 0; iteration < c.at("iterations"); ++iteration) {
      model.zero_grad();
      std::vector<torch::Tensor> gradients;
      for (size_t i = 0; i < shapes.size(); ++i) {
        gradients.push_back(wave(shapes[i], 1000 * iteration + 100 * rank() + static_cast<int64_t>(i)));
      }
      accelerate::detail::run_backward(state(), std::source_location::current(), [&] { model(gradients).backward(); });
      if (iteration < 2) continue;
      const json& theirs = c.at("results").at(static_cast<size_t>(iteration - 2));
      for (size_t i = 0; i < shapes.size(); ++i) furthest = std::max(furthest, distance(net->all[i].grad(), theirs.at(i)));
    }
    // Half precision has 11 bits, and a last one that falls the other way comes back by error feedback.
    const double tolerance = c.contains("wrapper") ? 1e-2 : 1e-5;
    tally.judge(c.at("hook").get<std::string>() + " " + c.at("options").dump() + c.value("wrapper", ""), furthest <= tolerance,
                "differs by " + std::to_string(furthest));
  }
  if (world() == 2 || world() == 3) {
    EXPECT_GT(tally.cases(), 20);
  }
}

/// The weights of the model after each step, and after the scope.
std::vector<std::vector<torch::Tensor>> local_sgd_trajectory(const json& c) {
  accelerate::Accelerator accelerator;
  torch::nn::Linear linear(4, 3);
  {
    torch::NoGradGuard no_grad;
    linear->weight.copy_(wave({3, 4}, 1));
    linear->bias.copy_(wave({3}, 2));
  }
  torch::optim::SGD sgd(linear->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(linear, sgd);
  std::vector<std::vector<torch::Tensor>> trajectory;
  const auto note = [&] { trajectory.push_back({linear->weight.detach().clone(), linear->bias.detach().clone()}); };
  accelerate::LocalSGD local(accelerator, model, c.at("steps"), c.at("enabled"));
  for (int step = 0; step < c.at("iterations"); ++step) {
    optimizer.zero_grad();
    const int64_t seed = 10 * step + accelerator.process_index();
    accelerator.backward((model(wave({5, 4}, seed)) - wave({5, 3}, seed + 500)).square().mean());
    optimizer.step();
    local.step();
    note();
  }
  local.finish();
  note();
  return trajectory;
}

TEST_F(TogetherGoldenCommunication, LocalSgdTakesTheWeightsThatPythonTakes) {
  golden::Tally tally("communication.json, LocalSGD on " + std::to_string(world()));
  for (const auto& c : cases("local_sgd")) {
    const auto trajectory = local_sgd_trajectory(c);
    double furthest = trajectory.size() == c.at("results").size() ? 0 : 1;
    for (size_t step = 0; step < trajectory.size() && rank() == 0; ++step) {
      for (size_t i = 0; i < 2; ++i) {
        furthest = std::max(furthest, distance(trajectory[step][i], c.at("results").at(step).at(i)));
      }
    }
    tally.judge("every " + c.at("steps").dump(), furthest <= 1e-6, "differs by " + std::to_string(furthest));
  }
  if (world() == 2 || world() == 3) {
    EXPECT_EQ(tally.cases(), 4);
  }
}

/// A batch norm of any number of dimensions.
struct NormLayer {
  explicit NormLayer(const json& c) {
    torch::nn::BatchNormOptions options(3);
    const json& given = c.at("options");
    options.affine(given.value("affine", true)).track_running_stats(given.value("track_running_stats", true));
    options.eps(given.value("eps", 1e-5));
    if (given.contains("momentum")) {
      options.momentum(given.at("momentum").is_null() ? std::optional<double>() : given.at("momentum").get<double>());
    }
    if (c.at("dims") == 1) take(torch::nn::BatchNorm1d(options));
    if (c.at("dims") == 2) take(torch::nn::BatchNorm2d(options));
    if (c.at("dims") == 3) take(torch::nn::BatchNorm3d(options));
  }

  template <class Holder>
  void take(Holder layer) {
    module = layer.ptr();
    forward = [layer](const torch::Tensor& x) mutable { return layer->forward(x); };
    if (!layer->options.affine()) return;
    torch::NoGradGuard no_grad;
    layer->weight.copy_(wave({3}, 1));
    layer->bias.copy_(wave({3}, 2));
  }

  /// The parameter or buffer of a name; undefined when there is none.
  torch::Tensor tensor(const std::string& name) const {
    const auto parameters = module->named_parameters(), buffers = module->named_buffers();
    if (parameters.contains(name)) return parameters[name];
    return buffers.contains(name) ? buffers[name] : torch::Tensor();
  }

  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
};

class TogetherGoldenBatchNorm : public TogetherGoldenCommunication {
 protected:
  /// Of a tensor that all processes have parts of, recorded as a whole: how far this process's part is from it.
  static double part_distance(const torch::Tensor& ours, const json& theirs, const std::vector<int64_t>& rows, int64_t row_size) {
    const auto r = static_cast<size_t>(rank());
    const int64_t begin = std::accumulate(rows.begin(), rows.begin() + rank(), int64_t{0}) * row_size;
    return distance(ours, json(theirs.begin() + begin, theirs.begin() + begin + rows[r] * row_size));
  }

  /// How far a step is from the recorded one.
  static double step_distance(NormLayer& layer, const json& recorded, int64_t step, const std::vector<int64_t>& sample) {
    const auto rows = recorded.at("rows").get<std::vector<int64_t>>();
    std::vector<int64_t> shape = sample;
    shape.insert(shape.begin(), rows[static_cast<size_t>(rank())]);
    const int64_t row_size = wave(sample, 0).numel();
    auto input = wave(shape, 10 * step + rank()).requires_grad_();
    layer.module->zero_grad();
    const auto output = layer.forward(input);
    (output * wave(shape, 10 * step + rank() + 500)).sum().backward();
    double furthest = std::max(part_distance(output, recorded.at("output"), rows, row_size),
                               part_distance(input.grad(), recorded.at("input_gradient"), rows, row_size));
    for (const std::string name : {"weight", "bias"}) {
      if (recorded.at(name + "_gradient").is_null()) continue;
      const auto sum = accelerate::reduce(state(), layer.tensor(name).grad(), accelerate::Reduction::sum);
      furthest = std::max(furthest, distance(sum, recorded.at(name + "_gradient")));
    }
    for (const std::string name : {"running_mean", "running_var"}) {
      if (recorded.at(name).is_null()) continue;
      furthest = std::max(furthest, distance(layer.tensor(name), recorded.at(name)));
    }
    return furthest;
  }
};

TEST_F(TogetherGoldenBatchNorm, ConvertedLayersAreOneBatchNormOfTheJoinedBatch) {
  golden::Tally tally("communication.json, batch norm on " + std::to_string(world()));
  const std::map<int, std::vector<int64_t>> samples = {{1, {3}}, {2, {3, 2, 3}}, {3, {3, 2, 2, 2}}};
  for (const auto& c : cases("batch_norm")) {
    NormLayer layer(c);
    EXPECT_EQ(accelerate::convert_sync_batchnorm(state(), *layer.module), 1);
    const auto& sample = samples.at(c.at("dims"));
    double furthest = 0;
    for (size_t step = 0; step < c.at("steps").size(); ++step) {
      furthest = std::max(furthest, step_distance(layer, c.at("steps").at(step), static_cast<int64_t>(step), sample));
    }
    layer.module->eval();
    std::vector<int64_t> shape = sample;
    shape.insert(shape.begin(), 4);
    furthest = std::max(furthest, distance(layer.forward(wave(shape, 99)), c.at("evaluated")));
    tally.judge(c.at("dims").dump() + "d " + c.at("options").dump(), furthest <= 1e-5, "differs by " + std::to_string(furthest));
  }
  if (world() == 2 || world() == 3) {
    EXPECT_EQ(tally.cases(), 8);
  }
}

}  // namespace
