#pragma once

#include <string>

namespace accelerate::detail::cli {

/// Hands a job file to sbatch and prints the number of the job. Returns the exit code; a refusal by sbatch is shown.
int submit_job(const std::string& file);

}  // namespace accelerate::detail::cli
