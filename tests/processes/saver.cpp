// Runs that save: killed at chosen instants of a save, refused something by the system, or left alone.
#include "saver.h"

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace saver {
namespace {

std::string folder_of_the_scene;

}  // namespace

const std::string& folder() { return folder_of_the_scene; }

int number_from(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : fallback;
}

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

std::string heard(const Accelerator& accelerator, const std::function<void()>& call) {
  const std::string who = "process " + std::to_string(accelerator.process_index());
  try {
    call();
    return who + " heard nothing";
  } catch (const accelerate::Error& error) {
    return who + " heard: " + error.what();
  }
}

void load_all(Accelerator& accelerator) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder() + "/checkpoints", none)) found.push_back(entry.path());
  accelerator.broadcast_object_list(found);
  for (const auto& each : found) accelerator.load_state(each);
}

}  // namespace saver

int main(int, char** argv) {
  saver::folder_of_the_scene = argv[2];
  saver::Scenes scenes;
  for (auto part : {saver::training_scenes(), saver::instant_scenes(), saver::rank_scenes(), saver::refusal_scenes(),
                    saver::project_scenes()})
    scenes.merge(part);
  return accelerate::testing::run_scene(argv[1], scenes);
}
