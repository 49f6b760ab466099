#include "hosts/gpu_list.h"

#include <algorithm>
#include <charconv>

namespace accelerate::detail {

std::vector<std::string> gpus_in(const std::string& list) {
  std::vector<std::string> ids;
  for (size_t begin = 0; list != "all" && begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string id = list.substr(begin, end - begin);
    const size_t first = id.find_first_not_of(' ');
    ids.push_back(first == std::string::npos ? "" : id.substr(first, id.find_last_not_of(' ') - first + 1));
    begin = end + 1;
  }
  return ids;
}

bool names_a_gpu(const std::string& id) { return gpu_number(id) || id.starts_with("GPU-") || id.starts_with("MIG-"); }

std::optional<int> gpu_number(const std::string& id) {
  int number = 0;
  const auto [end, problem] = std::from_chars(id.data(), id.data() + id.size(), number);
  if (problem != std::errc() || end != id.data() + id.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace accelerate::detail
