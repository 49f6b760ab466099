// Saves of runs of which one rank dies, leaves, or does not see what the others see.
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "faulty_system.h"
#include "saver.h"

namespace saver {
namespace {

/// The last process dies in the middle of a save, when the folder has been made.
void dies_in_save() {
  Saved run;
  run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    if (run.accelerator.is_last_process()) std::raise(SIGKILL);
  });
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder() + "/saved"); }));
}

/// It dies when its part has to be written by the thread behind it.
void dies_in_async_save() {
  Saved run;
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_last_process()) faulty_system::die_after(0);
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder() + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// Nobody waits for what is being written. One rank writes its part when all others have written theirs.
void leaves_while_saving() {
  Saved run;
  if (run.accelerator.process_index() == number_from("ACCELERATE_TEST_LAST", 0)) {
    faulty_system::hold_threads_until([me = run.accelerator.process_index(), count = run.accelerator.num_processes()] {
      for (int i = 0; i < count; ++i) {
        const std::string report = folder() + "/.saved.unfinished/report_" + std::to_string(i) + ".json";
        if (i != me && !std::filesystem::exists(report)) return false;
      }
      return true;
    });
  }
  run.accelerator.save_state(folder() + "/saved", {.async = true});
}

/// A rank dies before it has written its part; the others end without asking for the checkpoint.
void dies_behind_the_run() {
  Saved run;
  if (run.accelerator.is_last_process()) faulty_system::hold_threads_until([] { return false; });
  run.accelerator.save_state(folder() + "/saved", {.async = true});
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_last_process()) std::raise(SIGKILL);
}

/// No rank sees the reports of the others.
void sees_no_reports() {
  Saved run;
  faulty_system::hide_reports();
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder() + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// The main process dies when its part is written, and the other one writes on as soon as it is told to.
void outlives_the_main_process() {
  Saved run;
  if (!run.accelerator.is_main_process())
    faulty_system::hold_threads_until([] { return std::filesystem::exists(folder() + "/write_on"); });
  run.accelerator.save_state(folder() + "/saved", {.async = true});
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_main_process()) {
    while (!std::filesystem::exists(folder() + "/.saved.unfinished/report_0.json")) std::this_thread::yield();
    std::raise(SIGKILL);
  }
  say("still writing");
}

/// An exception ends the run while a save is under way.
void throws_while_saving() {
  Saved run;
  run.accelerator.save_state(folder() + "/saved", {.async = true});
  throw std::runtime_error("on purpose");
}

}  // namespace

Scenes rank_scenes() {
  return {{"dies_in_save", dies_in_save},
          {"dies_in_async_save", dies_in_async_save},
          {"leaves_while_saving", leaves_while_saving},
          {"dies_behind_the_run", dies_behind_the_run},
          {"sees_no_reports", sees_no_reports},
          {"outlives_the_main_process", outlives_the_main_process},
          {"throws_while_saving", throws_while_saving}};
}

}  // namespace saver
