#include "run_state/hook_states.h"

#include <accelerate/parallel/model.h>

#include "checkpoint/value_file.h"
#include "parallel/data_parallel.h"
#include "run_state/checkpoint_files.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {
namespace {

StateDict read_hook_file(const FolderFiles& files, int process) {
  const auto file = files.open(hook_states_name(process));
  Value value = read_value(*file);
  return std::move(value.as<StateDict>());
}

/// Adds a share of what another process has yet to send. The sum over all processes stays what it was.
void add_errors(StateDict& sum, const StateDict& states, double share) {
  for (auto& [model, state] : sum) {
    if (!states.contains(model)) continue;
    const auto& more = states.at(model)["errors"].as<StateDict>();
    for (auto& [bucket, error] : state.as<StateDict>().at("errors").as<StateDict>()) {
      if (more.contains(bucket)) error = error.get<at::Tensor>().add(more.at(bucket).get<at::Tensor>(), share);
    }
  }
}

}  // namespace

StateDict hook_states_of(const RunParts& parts) {
  StateDict states;
  for (size_t i = 0; i < parts.models.size(); ++i) {
    const auto& parallel = parts.models[i]->data_parallel();
    if (auto state = parallel ? parallel->hook_state() : std::nullopt) states[std::to_string(i)] = std::move(*state);
  }
  return states;
}

std::optional<StateDict> read_hook_states(const FolderFiles& files, const RunParts& parts) {
  int saved = 0;
  while (files.contains(hook_states_name(saved))) ++saved;
  if (saved == 0) return {};
  if (saved == parts.state.num_processes()) return read_hook_file(files, parts.state.process_index());
  StateDict mean = read_hook_file(files, 0);
  const StateDict first = mean;
  add_errors(mean, first, 1.0 / saved - 1);
  for (int process = 1; process < saved; ++process) add_errors(mean, read_hook_file(files, process), 1.0 / saved);
  return mean;
}

void load_hook_states(const RunParts& parts, const StateDict& states) {
  for (size_t i = 0; i < parts.models.size(); ++i) {
    const auto& parallel = parts.models[i]->data_parallel();
    const std::string number = std::to_string(i);
    if (parallel && states.contains(number)) parallel->load_hook_state(states.at(number).as<StateDict>());
  }
}

}  // namespace accelerate::detail
