#include <ATen/ops/full.h>
#include <accelerate/accelerator/process_control.h>
#include <accelerate/core/error.h>

namespace accelerate {

using namespace detail;

bool ProcessControl::check_trigger(std::source_location where) {
  const auto flag = at::full({1}, triggered_ ? 1 : 0, at::TensorOptions().dtype(at::kInt));
  triggered_ = false;
  return accelerate::reduce(state_, flag, Reduction::sum, where).item<int>() > 0;
}

void ProcessControl::check_index(int index, const char* call) {
  if (index < 0)
    throw UsageError(std::string(call) + " was given the process " + std::to_string(index) + ": processes are numbered from 0.");
}

void ProcessControl::print_line(std::string text) { write_line(1, text); }

ProgressOptions ProcessControl::shown(ProgressOptions options) const {
  options.disable = options.disable || !is_local_main_process();
  return options;
}

Logger ProcessControl::get_logger(std::string name, std::optional<LogLevel> level) const {
  return Logger(std::move(name), level ? *level : log_level_from(process_environment),
                {process_index(), num_processes(), [state = state_] { state.wait_for_everyone(); }});
}

}  // namespace accelerate
