#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A host of a DeepSpeed hostfile, and what a launch uses of it.
struct Host {
  /// As the file has it: a name or an address, perhaps with the user to log in as, `user@name`.
  std::string login = {};
  /// How many processes (on GPUs: how many GPUs) it has room for.
  int slots = 0;
  /// The slots that the filters leave, in the order in which ranks take them.
  std::vector<int> used = {};

  /// Its name or address alone.
  std::string name() const { return login.substr(login.find('@') + 1); }
  /// Whether a filter has left out some of its slots, or changed their order.
  bool is_filtered() const;
};

/// The hosts in the text of a hostfile: lines `NAME slots=N`, empty lines and comments (#). `path` is for messages. ConfigError
/// names the line.
std::vector<Host> parse_host_file(const std::string& text, const std::string& path);

/// The hosts that DeepSpeed's filters leave, in the order of the file: `worker-0@worker-1:0,2` is worker-0, and two slots of
/// worker-1. At most one of the filters may be given. UsageError names the flag, and the host or slot that the file lacks.
std::vector<Host> filter_hosts(std::vector<Host> hosts, const std::optional<std::string>& included,
                               const std::optional<std::string>& excluded);

/// The names of some hosts, for messages.
std::string names_of(const std::vector<Host>& hosts);

}  // namespace accelerate::detail
