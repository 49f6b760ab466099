#include "launch/launch_settings.h"

#include "config/python_text.h"
#include "launch/launch_flags.h"

namespace accelerate {
namespace {

// `use` is called with the member, or with the place of a value that is passed on; values that have no effect have none.
template <typename Settings, typename Use>
void with_member(Settings& settings, const SettingMember& member, const Use& use) {
  std::visit(
      [&](auto pointer) {
        if constexpr (!std::is_same_v<decltype(pointer), std::monostate>) use(settings.*pointer);
      },
      member);
}

template <typename Value>
PythonValue as_python(const std::optional<Value>& value) {
  return value ? PythonValue(*value) : PythonValue();
}

template <typename Value>
PythonValue as_python(const Value& value) {
  return value;
}

void take(PythonValue& member, const PythonValue& value) { member = value; }

template <typename Value>
void take(std::optional<Value>& member, const PythonValue& value) {
  member = value.get<Value>();
}

template <typename Value>
void take(Value& member, const PythonValue& value) {
  member = value.get<Value>();
}

}  // namespace

PythonValue value_of(const LaunchSettings& settings, const LaunchFlag& flag) {
  PythonValue value;
  if (const auto found = settings.passed_on.find(&flag); found != settings.passed_on.end()) value = found->second;
  with_member(settings, flag.member, [&](const auto& member) { value = as_python(member); });
  return value;
}

void set_value(LaunchSettings& settings, const LaunchFlag& flag, const PythonValue& value) {
  if (flag.has_member()) {
    with_member(settings, flag.member, [&](auto& member) { take(member, value); });
  } else if (flag.passed != PassedAs::nothing) {
    settings.passed_on[&flag] = value;
  }
}

std::string python_str(const PythonValue& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return python_number(value.get<double>());
  return value.dump();
}

}  // namespace accelerate
