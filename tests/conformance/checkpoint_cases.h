#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <filesystem>
#include <nlohmann/json.hpp>

/// The runs of state.json, built here as they were in Python.
namespace golden {

/// A tensor of the data that stands where only tensors do.
at::Tensor tensor(const nlohmann::json& node);
/// All bytes of a file.
std::string bytes_of_file(const std::filesystem::path& path);
/// What is not as in the data, or nothing: kinds, keys and their order, dtypes and shapes are equal, and the elements of tensors
/// to `tolerance`, relative to the largest of them where that is more than 1; other numbers to the last digit.
std::string difference(const accelerate::Value& ours, const accelerate::Value& theirs, double tolerance);
/// How the tensors of a value lie in memory, as the data has it.
nlohmann::json layout_of(const accelerate::Value& value);

/// The model of all recipes.
struct RecipeNet : torch::nn::Module {
  explicit RecipeNet(int64_t width);
  at::Tensor forward(const at::Tensor& x);

  torch::nn::Linear fc1, fc2 = nullptr;
  torch::nn::BatchNorm1d norm;
};

/// What the recipes register.
struct RecipeCounter {
  int64_t count = 0;
  accelerate::StateDict state_dict() const;
  void load_state_dict(const accelerate::StateDict& state) { count = state.at("count").get<int64_t>(); }
};

/// One run of a case: all of it is made with the seed given, so another than the case's own gives another beginning.
class RecipeRun {
 public:
  RecipeRun(const nlohmann::json& data, int64_t seed);

  /// A step, from 0; the loss.
  double step(int64_t number);
  std::vector<double> learning_rates() const;
  /// The weights of model `i`.
  accelerate::TensorDict weights(size_t i) const { return accelerate::state_dict(*nets_[i]); }
  const std::vector<std::unique_ptr<RecipeCounter>>& counters() const { return counters_; }

  accelerate::Accelerator accelerator;

 private:
  const nlohmann::json& data_;
  at::Tensor x_, y_;
  std::vector<std::shared_ptr<RecipeNet>> nets_;
  std::vector<std::shared_ptr<torch::optim::Optimizer>> inner_optimizers_;
  std::shared_ptr<accelerate::LRScheduler> inner_scheduler_;
  std::vector<accelerate::Model<RecipeNet>> models_;
  std::vector<accelerate::AcceleratedOptimizer> optimizers_;
  std::vector<std::unique_ptr<RecipeCounter>> counters_;
};

}  // namespace golden
