#include "elastic/machine_messages.h"

#include <unistd.h>

#include <array>
#include <charconv>

namespace accelerate::detail {

std::string field_in(const Connection::Fields& message, size_t place) { return place < message.size() ? message[place] : ""; }

std::optional<int> number_in(const Connection::Fields& message, size_t place) {
  const std::string text = field_in(message, place);
  int number = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

Connection::Fields failure_message(int round, const MachineFailure& failure) {
  return {kFailed,
          std::to_string(round),
          std::to_string(failure.machine),
          failure.host,
          failure.rank ? std::to_string(*failure.rank) : "",
          std::to_string(failure.exit_code),
          failure.by_itself ? "own" : "collective",
          failure.text};
}

std::optional<MachineFailure> read_failure(const Connection::Fields& message, int round) {
  const auto of_round = number_in(message, 1), machine = number_in(message, 2), exit_code = number_in(message, 5);
  if (message.size() != 8 || of_round != round || !machine || !exit_code) return std::nullopt;
  return MachineFailure{.machine = *machine,
                        .host = message[3],
                        .rank = number_in(message, 4),
                        .exit_code = *exit_code,
                        .by_itself = message[6] == "own",
                        .text = message[7]};
}

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace accelerate::detail
