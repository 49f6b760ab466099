#include <accelerate/checkpoint/save_file.h>
#include <accelerate/core/error.h>
#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/tensor_file.h"
#include "core/file.h"
#include "distributed/busy.h"

namespace accelerate {

using namespace detail;

void save_file(const TensorDict& tensors, const std::string& path) {
  const Busy busy("save_file", path);
  const TensorFormat format = format_by_name(path);
  OutputFile file(path);
  write_tensors(file, format, path, tensors);
  file.commit();
}

TensorDict load_file(const std::string& path, c10::Device device) {
  const Busy busy("load_file", path);
  const InputFile file(path);
  TensorDict tensors = read_tensors(file);
  if (!device.is_cpu()) {
    for (auto& item : tensors) item.second = item.second.to(device);
  }
  return tensors;
}

}  // namespace accelerate
