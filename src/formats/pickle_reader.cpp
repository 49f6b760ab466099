#include "formats/pickle_reader.h"

#include "formats/pickle_machine.h"

namespace accelerate::detail {

PickleTree read_pickle(std::string_view bytes, const std::string& file, const PickleRules& rules, size_t* used) {
  PickleMachine machine(bytes, file, rules);
  try {
    machine.run();
  } catch (const PickleKindError& error) {  // from the calls, which do not know the file
    machine.fail(error.what());
  }
  check_pickled_value(machine, *machine.tree().root, machine.position());
  if (used != nullptr) *used = machine.position();
  return std::move(machine.tree());
}

}  // namespace accelerate::detail
