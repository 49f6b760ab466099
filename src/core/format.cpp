#include <accelerate/core/format.h>

#include <fmt/args.h>
#include <fmt/format.h>

#include <accelerate/core/error.h>

namespace accelerate {

namespace {

using ArgumentStore = fmt::dynamic_format_arg_store<fmt::format_context>;

void push_argument(ArgumentStore& store, const FormatArgument& argument) {
  std::visit(
      [&store](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
          store.push_back(fmt::string_view(value.data(), value.size()));  // a view: the store would copy a std::string
        } else {
          store.push_back(value);
        }
      },
      argument.value());
}

}  // namespace

std::string FormatArgument::from_c_string(const char* text) {
  if (text == nullptr) throw UsageError("format: a const char* argument is null; give a string, which may be empty");
  return text;
}

std::string format_arguments(std::string_view pattern, std::span<const FormatArgument> arguments) {
  if (arguments.empty()) return std::string(pattern);
  ArgumentStore store;
  for (const FormatArgument& argument : arguments) push_argument(store, argument);
  try {
    return fmt::vformat(fmt::string_view(pattern.data(), pattern.size()), store);
  } catch (const fmt::format_error& error) {
    throw UsageError("format: the pattern \"" + std::string(pattern) + "\" does not match its " +
                     std::to_string(arguments.size()) + (arguments.size() == 1 ? " argument: " : " arguments: ") + error.what() +
                     " (a replacement field is {} or {:spec}; write {{ and }} for literal braces)");
  }
}

}  // namespace accelerate
