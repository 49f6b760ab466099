#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace accelerate::detail::cli {

struct CommandPage;

/// The arguments of a command other than launch. Its page says which of these it takes.
struct Arguments {
  /// -h or --help was among them.
  bool help = false;
  std::optional<std::string> config_file = {};
  std::optional<std::string> mixed_precision = {};
  bool json = false;
  bool overwrite = false;
  std::optional<std::string> output_file = {};
  std::optional<std::string> shard = {};
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
  /// Empty: none was given.
  std::vector<std::string> dtypes = {};
  std::vector<std::string> operands = {};
};

/// The member of Arguments that a flag sets; the last occurrence wins.
using ArgumentMember = std::variant<std::monostate, bool Arguments::*, std::optional<std::string> Arguments::*,
                                    std::vector<std::string> Arguments::*>;

/// Parses `given` as `page` describes: flags in both spellings, `--flag value` or `--flag=value`. UsageError names an unknown
/// flag with the closest known one, and values or operands that are missing, superfluous or not among the choices.
Arguments parse_arguments(const CommandPage& page, const std::vector<std::string>& given);

}  // namespace accelerate::detail::cli
