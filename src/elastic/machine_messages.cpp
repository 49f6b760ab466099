#include "elastic/machine_messages.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <charconv>

namespace accelerate::detail {
namespace {

std::string machines_text(int fewest, int most) {
  return fewest == most ? fmt::format("{}", most) : fmt::format("{}:{}", fewest, most);
}

std::string optional_text(const std::optional<int>& number) { return number ? std::to_string(*number) : ""; }

constexpr int kMostProcesses = 1 << 16;

constexpr std::array kSequels = {"restart", "regroup", "end"};

}  // namespace

std::string field_in(const Connection::Fields& message, size_t place) { return place < message.size() ? message[place] : ""; }

std::optional<int> number_in(const Connection::Fields& message, size_t place) {
  const std::string text = field_in(message, place);
  int number = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

Hello Hello::of(const MachineSettings& settings, const RendezvousSecret& secret, const std::string& nonce_of_hub) {
  Hello hello = {.job = settings.job,
                 .count = settings.count,
                 .fewest = settings.fewest(),
                 .rank = settings.rank,
                 .host = own_host(),
                 .processes = settings.processes,
                 .heterogeneous = settings.heterogeneous,
                 .max_restarts = settings.max_restarts,
                 .nonce = make_nonce()};
  hello.proof = secret.prove({hello.facts(nonce_of_hub)});
  return hello;
}

std::optional<Hello> Hello::read(const Connection::Fields& message) {
  const auto count = number_in(message, 2), fewest = number_in(message, 3), processes = number_in(message, 6),
             restarts = number_in(message, 8);
  if (message.size() != 11 || !count || !fewest || !processes || !restarts) return std::nullopt;
  if (!message[4].empty() && !number_in(message, 4)) return std::nullopt;
  return Hello{.job = message[1],
               .count = *count,
               .fewest = *fewest,
               .rank = number_in(message, 4),
               .host = message[5],
               .processes = *processes,
               .heterogeneous = message[7] == "heterogeneous",
               .max_restarts = *restarts,
               .nonce = message[9],
               .proof = message[10]};
}

Connection::Fields Hello::message() const {
  return {kHello,
          job,
          std::to_string(count),
          std::to_string(fewest),
          optional_text(rank),
          host,
          std::to_string(processes),
          heterogeneous ? "heterogeneous" : "",
          std::to_string(max_restarts),
          nonce,
          proof};
}

std::string Hello::facts(const std::string& nonce_of_hub) const {
  std::string text = fmt::format("{}:{}", nonce_of_hub.size(), nonce_of_hub);
  auto fields = message();
  fields.pop_back();  // the proof itself
  for (const auto& field : fields) text += fmt::format("{}:{}", field.size(), field);
  return text;
}

std::string reason_to_refuse(const Hello& hello, const MachineSettings& settings, const RendezvousSecret& secret,
                             const std::string& nonce_of_hub) {
  if (hello.job != settings.job)
    return fmt::format("machine 0 there launches another job ({}, not {}). Give each job a --main_process_port of its own.",
                       settings.job, hello.job);
  if (hello.count != settings.count || hello.fewest != settings.fewest())
    return fmt::format("machine 0 was launched with --num_machines {}, this one with {}.",
                       machines_text(settings.fewest(), settings.count), machines_text(hello.fewest, hello.count));
  if (hello.rank.has_value() != settings.rank.has_value())
    return fmt::format("machine 0 was launched {} --machine_rank, this one {}. Give it to all machines, or to none.",
                       settings.rank ? "with a" : "without", hello.rank ? "with one" : "without");
  if (hello.heterogeneous != settings.heterogeneous)
    return fmt::format("machine 0 was launched {} --heterogeneous, this one {} it.", settings.heterogeneous ? "with" : "without",
                       hello.heterogeneous ? "with" : "without");
  if (!settings.heterogeneous && hello.processes != settings.processes)
    return fmt::format(
        "machine 0 starts {} processes, this one {}. Give all machines the same --num_processes; or, if they are to differ, "
        "--heterogeneous and each its --nproc_per_node.",
        settings.processes, hello.processes);
  if (hello.processes < 1 || hello.processes > kMostProcesses)
    return fmt::format("it starts {} processes; 1 to {} are possible.", hello.processes, kMostProcesses);
  if (hello.max_restarts != settings.max_restarts)
    return fmt::format("machine 0 was launched with --max_restarts {}, this one with {}.", settings.max_restarts,
                       hello.max_restarts);
  if (hello.rank && (*hello.rank == 0 || *hello.rank >= settings.count))
    return fmt::format("--machine_rank {} is not one of 1 to {}.", *hello.rank, settings.count - 1);
  if (secret.given() == hello.proof.empty())
    return secret.given() ? "machine 0 has a shared secret, this one has none."
                          : "machine 0 has no shared secret, this one has one.";
  const bool proven = !secret.given() || secret.proves(hello.proof, {hello.facts(nonce_of_hub)});
  return proven ? "" : "its shared secret differs from that of machine 0.";
}

Connection::Fields start_message(const Round& round) {
  Connection::Fields message = {kStart};
  for (const int number :
       {round.number, round.restarts, round.port, round.machine, round.machines, round.first_rank, round.world_size})
    message.push_back(std::to_string(number));
  return message;
}

std::optional<Round> read_start(const Connection::Fields& message) {
  std::array<int, 7> numbers = {};
  if (message.size() != numbers.size() + 1) return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = number_in(message, i + 1);
    if (!number) return std::nullopt;
    numbers[i] = *number;
  }
  return Round{.number = numbers[0],
               .restarts = numbers[1],
               .port = numbers[2],
               .machine = numbers[3],
               .machines = numbers[4],
               .first_rank = numbers[5],
               .world_size = numbers[6]};
}

Connection::Fields failure_message(int round, const MachineFailure& failure) {
  return {kFailed,
          std::to_string(round),
          std::to_string(failure.machine),
          failure.host,
          optional_text(failure.rank),
          std::to_string(failure.exit_code),
          failure.by_itself ? "own" : "collective",
          kSequels[static_cast<size_t>(failure.sequel)],
          failure.text};
}

std::optional<MachineFailure> read_failure(const Connection::Fields& message, int round) {
  const auto of_round = number_in(message, 1), machine = number_in(message, 2), exit_code = number_in(message, 5);
  if (message.size() != 9 || of_round != round || !machine || !exit_code) return std::nullopt;
  MachineFailure failure = {.machine = *machine,
                            .host = message[3],
                            .rank = number_in(message, 4),
                            .exit_code = *exit_code,
                            .by_itself = message[6] == "own",
                            .text = message[8]};
  for (size_t i = 0; i < kSequels.size(); ++i) {
    if (message[7] == kSequels[i]) failure.sequel = static_cast<Sequel>(i);
  }
  return failure;
}

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace accelerate::detail
