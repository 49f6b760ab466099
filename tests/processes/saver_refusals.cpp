// Saves and loads that the system refuses something: a call, a thread, the right to write.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "faulty_system.h"
#include "saver.h"

namespace saver {
namespace {

/// A save into a folder that also has notes of the user's, or among numbered ones.
class Scene {
 public:
  Scene(std::string project, bool numbered, bool async) : project_(std::move(project)), numbered_(numbered), async_(async) {
    begin();
    save();
    durable_ = number_.value;
    if (!numbered_ && run_->is_main_process()) std::ofstream(own_folder() + "/notes.txt") << "mine";
    run_->wait_for_everyone();
  }

  /// Returns whether it was said to have gone well.
  bool try_to_save() {
    number_.value = ++attempted_;
    try {
      save();
      durable_ = attempted_;
      return true;
    } catch (const accelerate::CheckpointError& error) {
      require(*error.what() != 0, "an error without a word");
      return false;
    }
  }

  /// Loads what check() would find, or hears why not. What cannot be read is not mistaken for corrupt or missing.
  bool try_to_load() {
    try {
      load();
      return true;
    } catch (const accelerate::CheckpointError& error) {
      require(*error.what() != 0, "an error without a word");
      return false;
    }
  }

  /// What was durable, or what was attempted since, is there, with everything else.
  void check(bool by_another_run) {
    if (by_another_run) begin();
    load();
    require(numbered_ || std::filesystem::exists(own_folder() + "/notes.txt"), "the notes are gone");
    durable_ = number_.value;
  }
  /// Somebody else has tried to save.
  void allow_attempt() { ++attempted_; }
  Accelerator& run() { return *run_; }

 private:
  void load() {
    number_.value = -1;
    if (numbered_) {
      require(run_->load_state().has_value(), "there is no checkpoint");
    } else {
      run_->load_state(own_folder());
    }
    require(number_.value >= durable_ && number_.value <= attempted_,
            "the checkpoint holds " + std::to_string(number_.value) + " and not " + std::to_string(durable_));
  }
  std::string own_folder() const { return project_ + "/same"; }
  void begin() {
    run_.reset();
    run_ = std::make_unique<Accelerator>(accelerate::AcceleratorOptions{
        .project = {.project_dir = project_, .automatic_checkpoint_naming = numbered_, .total_limit = 2},
        .timeout = std::chrono::seconds(40)});
    run_->prepare(net_);
    run_->register_for_checkpointing(number_);
  }
  void save() {
    run_->save_state(numbered_ ? "" : own_folder(), {.async = async_});
    if (async_) run_->end_training();
  }

  const std::string project_;
  const bool numbered_, async_;
  torch::nn::Linear net_{4, 4};
  Number number_;
  int64_t durable_ = 0, attempted_ = 0;
  std::unique_ptr<Accelerator> run_;
};

/// Every call of a save is refused once, or with all calls after it; then every call of the load.
void every_refusal() {
  for (const int kind : {0, 1, 2, 3, 4, 5}) {
    const bool numbered = kind % 2 == 1, lasting = kind >= 4, lacks_all = kind == 2;
    faulty_system::set_lacks({.exchange = lacks_all || kind == 3 || kind == 4, .links = lacks_all, .locks = lacks_all});
    Scene scene(folder() + "/" + std::to_string(kind), numbered, /*async=*/false);
    int refusals = 0;
    for (bool came = true; came; ++refusals) {
      faulty_system::refuse_after(refusals, EIO, lasting);
      const bool saved = scene.try_to_save();
      came = faulty_system::end_refusal();
      require(came || saved, "nothing was refused, and it failed");
      scene.check(/*by_another_run=*/refusals % 3 == 0);
    }
    say("refusals of saves: " + std::string(refusals > 40 ? "many" : "few"));
    refusals = 0;
    for (bool came = true; came; ++refusals) {
      faulty_system::refuse_after(refusals, EMFILE, lasting);
      const bool loaded = scene.try_to_load();
      came = faulty_system::end_refusal();
      require(came || loaded, "nothing was refused, and it failed");
      scene.check(/*by_another_run=*/false);
    }
    say("refusals of loads: " + std::string(refusals > 10 ? "many" : "few"));
  }
}

/// What happens to one save of a random scene.
enum class Trouble { none, refused, lasting, load_refused, no_thread, killed };

/// A copy of this process dies in the middle of a save; it may save where this one has ended.
bool killed_while_saving(Scene& scene, int when) {
  scene.run().end_training();
  const pid_t copy = ::fork();
  if (copy == 0) {
    faulty_system::die_after(when);
    scene.try_to_save();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(copy, &status, 0);
  scene.allow_attempt();
  return WIFSIGNALED(status);
}

/// Kills, refusals and threads that cannot be had, at random instants of all kinds of saves and loads.
void random_scenes() {
  const int count = number_from("ACCELERATE_TEST_SCENES", 20), seed = number_from("ACCELERATE_TEST_SEED", 0);
  const bool alone = number_from("WORLD_SIZE", 1) == 1;
  int troubles = 0;
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(static_cast<unsigned>(seed * 100'000 + i));
    const auto one_of = [&](unsigned options) { return static_cast<int>(random() % options); };
    const bool numbered = one_of(2) == 0, async = one_of(2) == 0;
    constexpr int kReasons[] = {EIO, ENOSPC, EMFILE, EACCES, ESTALE};
    faulty_system::set_lacks({.exchange = one_of(2) == 0, .links = one_of(4) == 0, .locks = one_of(4) == 0});
    const std::string project = folder() + "/" + std::to_string(i);
    Scene scene(project, numbered, async);
    for (int save = 0; save < 3; ++save) {
      // Only a lone process can make a copy of itself; several are killed by Kills.
      const auto trouble = static_cast<Trouble>(one_of(alone ? 6 : 5));
      const int when = one_of(120), reason = kReasons[one_of(5)], who = one_of(3);
      const bool mine = alone || scene.run().process_index() == who % scene.run().num_processes();
      const auto refuse = [&] {
        if (mine) faulty_system::refuse_after(when, reason, trouble == Trouble::lasting);
      };
      if (trouble == Trouble::killed) {
        troubles += killed_while_saving(scene, when);
      } else {
        if (trouble == Trouble::refused || trouble == Trouble::lasting) refuse();
        if (trouble == Trouble::no_thread && mine) faulty_system::limit_threads(when % 3);
        troubles += !scene.try_to_save();
        faulty_system::limit_threads(-1);
        faulty_system::end_refusal();
      }
      if (trouble == Trouble::load_refused) {
        refuse();
        troubles += !scene.try_to_load();
        faulty_system::end_refusal();
      }
      scene.check(/*by_another_run=*/one_of(2) == 0);
    }
    scene.run().wait_for_everyone();  // the others may still look
    if (scene.run().is_main_process()) std::filesystem::remove_all(project);
  }
  say(troubles > 0 ? "nothing lost" : "nothing happened");
}

/// The last rank has no thread to save with.
void no_thread_for_a_save() {
  Saved run;
  if (run.accelerator.is_last_process()) faulty_system::limit_threads(0);
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder() + "/saved", {.async = true}); }));
  faulty_system::limit_threads(-1);
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder() + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// As somebody who may not write there. Training goes on, and what may be written is.
void may_not_write() {
  Saved run;
  auto& accelerator = run.accelerator;
  say(heard(accelerator, [&] { accelerator.save_state(folder() + "/closed/saved"); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder() + "/closed/saved", {.async = true}); }));
  say(heard(accelerator, [&] { accelerate::save_weights(accelerate::state_dict(*run.net), folder() + "/closed"); }));
  say(heard(accelerator, [&] { accelerate::save_file(accelerate::state_dict(*run.net), folder() + "/closed/a.safetensors"); }));
  say(heard(accelerator, [&] { accelerator.load_state(folder() + "/unreadable"); }));
  Accelerator automatic({.project = {.project_dir = folder() + "/hidden", .automatic_checkpoint_naming = true}});
  say(heard(automatic, [&] { automatic.load_state(); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder() + "/open/saved"); }));
}

}  // namespace

Scenes refusal_scenes() {
  return {{"every_refusal", every_refusal},
          {"random_scenes", random_scenes},
          {"no_thread_for_a_save", no_thread_for_a_save},
          {"may_not_write", may_not_write}};
}

}  // namespace saver
