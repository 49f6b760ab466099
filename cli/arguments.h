#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace accelerate::detail::cli {

struct CommandPage;

/// What was given to a command other than launch, after its name. Its page says which of these it has.
struct Arguments {
  /// -h or --help was among them.
  bool help = false;
  std::optional<std::string> config_file = {};
  std::optional<std::string> mixed_precision = {};
  bool json = false;
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
  /// Empty: none was given.
  std::vector<std::string> dtypes = {};
  std::vector<std::string> operands = {};
};

/// The member of Arguments that a flag sets; what is given last counts.
using ArgumentMember = std::variant<std::monostate, bool Arguments::*, std::optional<std::string> Arguments::*,
                                    std::vector<std::string> Arguments::*>;

/// Reads `given` as `page` has it: flags in both spellings, `--flag value` or `--flag=value`. UsageError names what it does not
/// know, with the closest of what it does, and values or operands that are missing, too many or none of the choices.
Arguments parse_arguments(const CommandPage& page, const std::vector<std::string>& given);

}  // namespace accelerate::detail::cli
