#include "checkpoint/shared_failure.h"

#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>

#include <algorithm>

namespace accelerate::detail {

std::string failure_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const DistributedError&) {
    throw;
  } catch (const std::exception& error) {
    return *error.what() != '\0' ? error.what() : "an exception without a message";
  } catch (...) {
    return "an exception that is not a std::exception";
  }
  return "";
}

std::string shared_failure(const ProcessState& state, const std::string& mine, std::source_location where) {
  const auto all = gather_object(
      state, std::vector<std::string>{mine.empty() ? "" : fmt::format("rank {}: {}", state.process_index(), mine)}, where);
  const auto found = std::find_if(all.begin(), all.end(), [](const auto& text) { return !text.empty(); });
  return found == all.end() ? "" : *found;
}

void throw_failure(const char* call, const std::string& failure) {
  if (!failure.empty()) throw CheckpointError(fmt::format("{}: {}", call, failure));
}

}  // namespace accelerate::detail
