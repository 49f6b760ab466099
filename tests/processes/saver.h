#pragma once

#include <accelerate/accelerate.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "scene.h"

/// A program that saves in many ways: what its scenes have in common.
namespace saver {

using accelerate::Accelerator;
using accelerate::testing::say;

/// Scenes by name, as run_scene takes them.
using Scenes = std::map<std::string, void (*)()>;

/// Runs that train, save after every step, and are killed on the way.
Scenes training_scenes();
/// Saves that are cut short at each of their instants in turn.
Scenes instant_scenes();
/// Saves of runs of which one rank dies, leaves, or does not see what the others see.
Scenes rank_scenes();
/// Saves and loads that the system refuses something.
Scenes refusal_scenes();
/// Several runs that save in one place, and one that saves in several.
Scenes project_scenes();

/// The folder that the scene may fill.
const std::string& folder();

/// The number in an environment variable, or `fallback` where it is not set.
int number_from(const char* variable, int fallback);

/// Ends the scene with the error `what` unless `holds`.
void require(bool holds, const std::string& what);

/// Makes the call, and returns a line that says which process heard which error of it.
std::string heard(const Accelerator& accelerator, const std::function<void()>& call);

/// Loads all numbered checkpoints of folder(): everything that is there must be whole, not the newest alone.
void load_all(Accelerator& accelerator);

/// A number to register for checkpointing, by which checkpoints are told apart.
struct Number {
  int64_t value = 0;
  accelerate::StateDict state_dict() const { return {{"value", value}}; }
  void load_state_dict(const accelerate::StateDict& state) { value = state.at("value").get<int64_t>(); }
};

/// A run with a small model to save.
struct Saved {
  Saved() : accelerator({.timeout = std::chrono::seconds(40)}), net(64, 64), sgd(net->parameters(), 0.1) {
    accelerator.prepare(net, sgd);
  }
  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
};

}  // namespace saver
