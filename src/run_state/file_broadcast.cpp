#include "run_state/file_broadcast.h"

#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "checkpoint/host_group.h"
#include "checkpoint/shared_failure.h"
#include "run_state/checkpoint_reader.h"
#include "run_state/run_parts.h"

namespace accelerate::detail {
namespace {

/// What the ranks that receive a file have to know of it.
struct SharedFile {
  std::string name;
  uint64_t size = 0;
  bool verified = false;
};

std::vector<SharedFile> read_common_files(const RunParts& parts, FolderFiles& files) {
  const auto names = common_files(parts, files);
  files.read(names);
  std::vector<SharedFile> shared;
  for (const auto& name : names) {
    const auto source = files.open(name);
    if (!source->memory()) throw CheckpointError(fmt::format("{} cannot be read, or there is no memory for it.", source->name()));
    shared.push_back({name, source->size(), source->is_verified()});
  }
  return shared;
}

}  // namespace

std::string broadcast_files(const RunParts& parts, FolderFiles& files, std::source_location where) {
  const ProcessState host = host_group(parts.state, where);
  const bool reads = host.is_main_process();
  std::vector<SharedFile> shared;
  const std::string unread = failure_of([&] {
    if (reads) shared = read_common_files(parts, files);
  });
  if (std::string failure = shared_failure(parts.state, unread, where); !failure.empty()) return failure;
  broadcast_object_list(host, shared, 0, where);
  std::vector<char*> memory;
  const std::string no_memory = failure_of([&] {
    for (const auto& file : shared)
      memory.push_back(reads ? files.open(file.name)->memory().get() : files.receive(file.name, file.size, file.verified));
  });
  if (std::string failure = shared_failure(parts.state, no_memory, where); !failure.empty()) return failure;
  for (size_t i = 0; i < shared.size(); ++i) broadcast_memory(host, memory[i], shared[i].size, "load_state", where);
  return "";
}

}  // namespace accelerate::detail
