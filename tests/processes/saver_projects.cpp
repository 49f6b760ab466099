// Several runs that save in one place, and one that saves in several.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "faulty_system.h"
#include "saver.h"

namespace saver {
namespace {

std::unique_ptr<Accelerator> run_in_project() {
  return std::make_unique<Accelerator>(accelerate::AcceleratorOptions{
      .project = {.project_dir = folder(), .automatic_checkpoint_naming = true, .total_limit = 1}});
}

void saves_and_waits() {
  const auto run = run_in_project();
  run->save_state();
  say("saved by " + std::to_string(::getpid()));
  ::pause();
}

void saves_once() {
  const auto run = run_in_project();
  say(heard(*run, [&] { run->save_state(); }));
}

/// Stays in the middle of a save to a folder of its own.
void waits_in_a_save() {
  Saved run;
  run.accelerator.register_save_state_pre_hook([](auto&&...) {
    say("saving");
    ::pause();
  });
  run.accelerator.save_state(folder() + "/saved");
}

void saves_to_a_folder() {
  Saved run;
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder() + "/saved"); }));
}

/// Where there are no locks another run may take away what is being written.
void saves_without_locks() {
  Saved run;
  const std::filesystem::path target = folder() + "/saved", aside = folder() + "/.saved.unfinished";
  run.accelerator.save_state(target);
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    std::filesystem::remove_all(aside);
    std::filesystem::create_directory(aside);
  });
  say(heard(run.accelerator, [&] { run.accelerator.save_state(target); }));
  hook.remove();
  faulty_system::remove_with_manifest(aside / "random_states_0.pkl");
  say(heard(run.accelerator, [&] { run.accelerator.save_state(target); }));
  faulty_system::remove_with_manifest("");
  run.accelerator.load_state(target);
  say("the checkpoint before is there");
}

void saves_many() {
  const auto run = run_in_project();
  torch::nn::Linear net(4, 4);
  run->prepare(net);
  for (int i = 0; i < 150; ++i) run->save_state();
}

/// Until the newest is the last one of saves_many.
void reads_many() {
  const auto run = run_in_project();
  torch::nn::Linear net(4, 4);
  run->prepare(net);
  for (std::string newest; newest != "checkpoint_149";) {
    if (const auto found = run->load_state()) newest = found->filename().string();
  }
  say("read all");
}

/// Hosts that keep their own checkpoints resume from one that all of them have.
void machines_of_their_own() {
  const std::string project = folder() + "/machine_" + std::getenv("GROUP_RANK");
  Accelerator accelerator({.project = {.project_dir = project, .automatic_checkpoint_naming = true, .save_on_each_node = true}});
  const std::string who = "process " + std::to_string(accelerator.process_index());
  for (int i = 0; i < 3; ++i) accelerator.save_state({.async = i == 1});
  const auto lose = [&](const std::string& name) {
    if (accelerator.is_last_process()) std::filesystem::remove_all(project + "/checkpoints/" + name);
    accelerator.wait_for_everyone();
  };
  say(who + " finds " + accelerator.load_state()->filename().string());
  lose("checkpoint_2");
  say(who + " finds " + accelerator.load_state()->filename().string());
  for (const std::string name : {"checkpoint_0", "checkpoint_1"}) lose(name);
  say(heard(accelerator, [&] { accelerator.load_state(); }));
}

}  // namespace

Scenes project_scenes() {
  return {{"saves_and_waits", saves_and_waits},
          {"saves_once", saves_once},
          {"waits_in_a_save", waits_in_a_save},
          {"saves_to_a_folder", saves_to_a_folder},
          {"saves_without_locks", saves_without_locks},
          {"saves_many", saves_many},
          {"reads_many", reads_many},
          {"machines_of_their_own", machines_of_their_own}};
}

}  // namespace saver
