#include <ATen/ops/full.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/core/error.h>

namespace accelerate {
namespace {

Precision resolve_precision(const AcceleratorOptions& options) {
  if (options.mixed_precision) return *options.mixed_precision;
  const auto text = process_environment("ACCELERATE_MIXED_PRECISION");
  return text ? parse_precision(*text, "ACCELERATE_MIXED_PRECISION") : Precision::no;
}

int resolve_accumulation_steps(const AcceleratorOptions& options) {
  const auto text = process_environment("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  const auto steps = integer_from(process_environment, {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  if (text && steps.value_or(0) < 1)
    throw ConfigError("ACCELERATE_GRADIENT_ACCUMULATION_STEPS=" + *text + ": expected an integer of at least 1.");
  if (steps) return *steps;
  if (options.gradient_accumulation_steps < 1) {
    throw UsageError("gradient_accumulation_steps=" + std::to_string(options.gradient_accumulation_steps) +
                     ": expected at least 1.");
  }
  return options.gradient_accumulation_steps;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options)
    : mixed_precision_(resolve_precision(options)),
      gradient_accumulation_steps_(resolve_accumulation_steps(options)),
      device_placement_(options.device_placement),
      state_({.cpu = options.cpu, .process_group = options.process_group, .timeout = options.timeout}) {}

std::string to_string(const Accelerator& accelerator) {
  return to_string(accelerator.state_) + "\nMixed precision type: " + to_string(accelerator.mixed_precision_) + "\n";
}

bool Accelerator::check_trigger(std::source_location where) {
  const auto flag = at::full({1}, triggered_ ? 1 : 0, at::TensorOptions().dtype(at::kInt));
  triggered_ = false;
  return accelerate::reduce(state_, flag, Reduction::sum, where).item<int>() > 0;
}

void Accelerator::check_index(int index, const char* call) {
  if (index < 0)
    throw UsageError(std::string(call) + " was given the process " + std::to_string(index) + ": processes count from 0.");
}

void Accelerator::check_can_prepare_model() const {
  if (mixed_precision_ == Precision::no) return;
  throw UsageError(std::string("mixed_precision is ") + to_string(mixed_precision_) +
                   ", and this version does not run prepared models in it yet. Set it to no.");
}

void Accelerator::print_line(std::string text) { write_line(1, text); }

ProgressOptions Accelerator::shown(ProgressOptions options) const {
  options.disable = options.disable || !is_local_main_process();
  return options;
}

Logger Accelerator::get_logger(std::string name, std::optional<LogLevel> level) const {
  return Logger(std::move(name), level ? *level : log_level_from(process_environment),
                {process_index(), num_processes(), [state = state_] { state.wait_for_everyone(); }});
}

}  // namespace accelerate
