// Saves that are cut short at each of their instants in turn: what can be loaded then. And what a save has synced at its end.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <stdexcept>

#include "faulty_system.h"
#include "saver.h"

namespace saver {
namespace {

/// Calls `save` in a copy of this process that dies at its first change of the file system, its second, and so on, until one
/// lives to the end of it. After each death `check` looks at what there is.
void die_at_every_instant(const std::string& what, const std::function<void()>& save, const std::function<void()>& check) {
  int instants = 0;
  for (bool died = true; died; ++instants) {
    const pid_t copy = ::fork();
    if (copy == 0) {
      faulty_system::die_after(instants);
      save();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(copy, &status, 0);
    died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!died && status != 0) throw std::runtime_error(what + ": the copy failed");
    check();
  }
  say(what + ": " + (instants > 10 ? "many" : "few") + " instants");
}

/// Automatic names: whatever is seen is whole, and the newest is the old one or the new one. With `iteration`: always that one.
void every_instant_of_a_numbered_save(std::optional<int64_t> iteration) {
  const accelerate::ProjectConfiguration project = {
      .project_dir = folder(), .automatic_checkpoint_naming = true, .total_limit = 1, .iteration = iteration};
  Accelerator accelerator({.project = project});
  torch::nn::Linear net(4, 4);
  accelerator.prepare(net);
  Number number{.value = 1};
  accelerator.register_for_checkpointing(number);
  int64_t newest = 0;
  const auto save = [&] {
    number.value = newest + 1;
    Accelerator next({.project = project});
    next.prepare(net);
    next.register_for_checkpointing(number);
    next.save_state();
  };
  save();
  newest = 1;
  int deaths = 0;
  die_at_every_instant("numbered", save, [&] {
    if (++deaths % 2 == 0) {  // the next run saves before it has loaded anything
      ++newest;
      save();
      ++newest;
    }
    load_all(accelerator);
    require(accelerator.load_state().has_value(), "there is none");
    require(number.value == newest || number.value == newest + 1, "neither the old nor the new one");
    newest = number.value;
  });
}

/// A name that is used again: the old one or the new one, and what else lies there.
void every_instant_of_a_replacing_save() {
  Accelerator accelerator;
  torch::nn::Linear net(4, 4);
  accelerator.prepare(net);
  Number number{.value = 1};
  accelerator.register_for_checkpointing(number);
  const std::string target = folder() + "/same";
  accelerator.save_state(target);
  std::ofstream(target + "/notes.txt") << "mine";
  int64_t newest = 1;
  const auto save = [&] {
    number.value = newest + 1;
    accelerator.save_state(target);
  };
  int deaths = 0;
  die_at_every_instant("replacing", save, [&] {
    if (++deaths % 2 == 0) {  // the next run saves before it has loaded anything
      ++newest;
      save();
      ++newest;
    }
    accelerator.load_state(target);
    require(number.value == newest || number.value == newest + 1, "neither the old nor the new one");
    require(std::filesystem::exists(target + "/notes.txt"), "the notes are gone");
    newest = number.value;
  });
}

/// Weights for others: the old set, the new one, or none that could be mistaken for one.
void every_instant_of_save_model() {
  const std::string target = folder() + "/model";
  const auto weights = [](double value) {
    accelerate::TensorDict tensors;
    for (const auto* name : {"a", "b", "c"}) tensors[name] = torch::full({100}, value);
    return tensors;
  };
  double value = 0;
  for (const std::string shards : {"0.4KB", "10MB", "0.8KB"}) {
    const auto save = [&] { accelerate::save_weights(weights(value), target, {.max_shard_size = shards}); };
    save();
    ++value;
    die_at_every_instant("weights", save, [&] {
      try {
        std::set<double> seen;
        for (const auto& item : accelerate::load_weights(target)) seen.insert(item.second.mean().item<double>());
        require(seen == std::set<double>{value} || seen == std::set<double>{value - 1}, "half old and half new");
      } catch (const accelerate::CheckpointError&) {
        // Nothing is better than a mixture.
      }
    });
  }
}

void hook_files_are_durable() {
  Saved run;
  const auto syncs_of_a_save = [&] {
    const int before = faulty_system::synced_files();
    run.accelerator.save_state(folder() + "/saved");
    return faulty_system::synced_files() - before;
  };
  const int plain = syncs_of_a_save();
  run.accelerator.register_save_state_pre_hook([](auto&&, auto&&, const std::string& aside) {
    std::filesystem::create_directory(aside + "/below");
    std::ofstream(aside + "/mine") << "1";
    std::ofstream(aside + "/below/mine") << "2";
  });
  say("more: " + std::to_string(syncs_of_a_save() - plain));  // two files and a folder
}

}  // namespace

Scenes instant_scenes() {
  return {{"every_instant_of_a_numbered_save", [] { every_instant_of_a_numbered_save({}); }},
          {"every_instant_of_the_same_number", [] { every_instant_of_a_numbered_save(3); }},
          {"every_instant_of_a_replacing_save", every_instant_of_a_replacing_save},
          {"every_instant_of_save_model", every_instant_of_save_model},
          {"hook_files_are_durable", hook_files_are_durable}};
}

}  // namespace saver
