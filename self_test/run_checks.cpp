#include <accelerate/accelerator/accelerator.h>
#include <accelerate/core/format.h>

#include "check.h"

namespace accelerate::self_test {
namespace {

// One write for each line: lines of several processes then do not mix.
void say(std::FILE* stream, const std::string& text) {
  std::fputs(text.c_str(), stream);
  std::fflush(stream);
}

void tell_problems(std::FILE* stream, const Check& check, const Accelerator& accelerator,
                   const std::vector<std::string>& problems) {
  for (const auto& problem : problems) {
    say(stream, format("The check of {} failed on rank {} of {}: {}\n", check.name, accelerator.process_index(),
                       accelerator.num_processes(), problem));
  }
}

Findings run_here(const Check& check, Accelerator& accelerator, const Streams& streams) {
  Findings findings;
  try {
    check.run(accelerator, findings);
  } catch (const std::exception& error) {
    if (accelerator.is_main_process()) say(streams.progress, "FAILED\n");
    tell_problems(streams.problems, check, accelerator, findings.problems());
    tell_problems(streams.problems, check, accelerator, {error.what()});
    throw;
  }
  return findings;
}

}  // namespace

int run_checks(std::span<const Check> checks, Accelerator& accelerator, const Streams& streams) {
  const auto show = [&](const std::string& text) {
    if (accelerator.is_main_process()) say(streams.progress, text);
  };
  for (const auto& check : checks) {
    show(format("checking {} ... ", check.name));
    const auto findings = run_here(check, accelerator, streams);
    const bool failed_here = !findings.problems().empty();
    // Reported before the results are gathered: the collective itself may be broken.
    if (failed_here) show("FAILED\n");
    tell_problems(streams.problems, check, accelerator, findings.problems());
    const auto failures = accelerator.reduce(integers(accelerator, {failed_here ? 1 : 0}));
    const bool failed = failed_here || failures.item<int64_t>() != 0;
    if (!failed_here) show(failed ? "FAILED\n" : "ok\n");
    if (failed) return 1;
  }
  return 0;
}

}  // namespace accelerate::self_test
