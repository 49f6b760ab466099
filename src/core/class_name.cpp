#include "core/class_name.h"

#include <algorithm>

namespace accelerate::detail {
namespace {

std::string_view without_impl(std::string_view name) {
  constexpr std::string_view kImpl = "Impl";
  const auto rest = name.substr(0, name.size() - std::min(name.size(), kImpl.size()));
  const bool is_ending = name.ends_with(kImpl) && !rest.empty() && !rest.ends_with("::");
  return is_ending ? rest : name;
}

/// What follows the last :: that is not inside template arguments.
std::string_view last_component(std::string_view name) {
  const auto arguments = std::min(name.find('<'), name.size());
  const auto colons = name.substr(0, arguments).rfind("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

}  // namespace

bool names_class(std::string_view written, std::string_view class_name) {
  const auto wanted = without_impl(written), full = without_impl(class_name);
  return wanted == full || wanted == last_component(full);
}

bool any_names_class(const std::vector<std::string>& written, std::string_view class_name) {
  return std::any_of(written.begin(), written.end(), [&](const auto& one) { return names_class(one, class_name); });
}

}  // namespace accelerate::detail
