#include <accelerate/accelerator/accelerator.h>
#include <accelerate/core/launch_environment.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "sections.h"

namespace accelerate::self_test {
namespace {

// A folder that all processes of one machine know, removed by the one that made it.
class MachineFolder {
 public:
  explicit MachineFolder(const Accelerator& accelerator) : owned_(accelerator.is_local_main_process()) {
    std::string mine;
    if (owned_) {
      mine = (std::filesystem::temp_directory_path() / "accelerate_test_XXXXXX").string();
      if (::mkdtemp(mine.data()) == nullptr) mine.clear();
    }
    const auto all = accelerator.gather_object(std::vector<std::string>{read_launch_environment().machine, mine});
    for (size_t i = 0; i + 1 < all.size(); i += 2) {
      if (all[i] == read_launch_environment().machine && !all[i + 1].empty()) path_ = all[i + 1];
    }
  }
  ~MachineFolder() {
    std::error_code ignored;
    if (owned_ && !path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MachineFolder(const MachineFolder&) = delete;
  MachineFolder& operator=(const MachineFolder&) = delete;
  /// Empty when none could be made.
  const std::filesystem::path& path() const { return path_; }

 private:
  bool owned_;
  std::filesystem::path path_;
};

void append(const std::filesystem::path& path, const std::string& line) { std::ofstream(path, std::ios::app) << line + "\n"; }

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Every process writes its name while it is in the scope that `enter` makes; the first one must come before all others.
template <class Enter>
void check_first(Accelerator& accelerator, Findings& findings, const std::string& scope, bool is_first, Enter enter) {
  const MachineFolder folder(accelerator);
  findings.expect(!folder.path().empty(), "a folder can be created in the temporary folder");
  {
    const auto first = enter();
    append(folder.path() / "order", is_first ? "first" : "other");
  }
  accelerator.wait_for_everyone();
  const auto lines = lines_of(folder.path() / "order");
  findings.equal(static_cast<int64_t>(lines.size()), read_launch_environment().local_num_processes,
                 "every process of this machine has written its line within " + scope);
  const auto found = std::find(lines.begin(), lines.end(), "first");
  findings.expect(found == lines.begin() || found == lines.end(), scope + " let its process in before the others");
  accelerator.wait_for_everyone();  // the folder goes when all have read
}

}  // namespace

void check_ranks(Accelerator& accelerator, Findings& findings) {
  const auto launch = read_launch_environment();
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  findings.equal(world, launch.num_processes, "the group has as many processes as were launched");
  findings.equal(rank, launch.process_index, "this process has the rank that its launcher gave it");
  findings.equal(accelerator.local_process_index(), launch.local_process_index, "the local rank is that of the launcher");
  findings.equal(accelerator.is_main_process(), rank == 0, "the main process is rank 0");
  findings.equal(accelerator.is_last_process(), rank == world - 1, "the last process has the highest rank");
  findings.equal(accelerator.gather_object(Numbers{rank}), range(0, world), "the ranks are 0 to world size - 1");
  const auto device = accelerator.device();
  const auto kinds = accelerator.gather_object(std::vector<std::string>{c10::DeviceTypeName(device.type())});
  findings.equal(kinds, std::vector<std::string>(kinds.size(), kinds.front()), "all processes use the same device type");
  const auto places = accelerator.gather_object(std::vector<std::string>{launch.machine + " " + device.str()});
  const std::set<std::string> different(places.begin(), places.end());
  findings.expect(device.is_cpu() || different.size() == places.size(), "every process has a device of its own");
  findings.expect(integers(accelerator, {1}).device().type() == device.type(), "tensors can be made on the device");
}

void check_running_on_one_process(Accelerator& accelerator, Findings& findings) {
  const int rank = accelerator.process_index(), world = accelerator.num_processes();
  const auto runs = [](auto wrapped) {
    wrapped();
    return *wrapped();
  };
  const auto expect_on = [&](const std::string& name, bool here, auto wrapped) {
    findings.equal(wrapped().has_value(), here, name + " runs on its process and no other");
    if (here) findings.equal(runs(wrapped), 7, name + " returns what the function returns");
  };
  const auto seven = [] { return 7; };
  expect_on("on_main_process", rank == 0, accelerator.on_main_process(seven));
  expect_on("on_local_main_process", accelerator.local_process_index() == 0, accelerator.on_local_main_process(seven));
  expect_on("on_last_process", rank == world - 1, accelerator.on_last_process(seven));
  for (int i = 0; i < world; ++i) {
    expect_on("on_process(" + std::to_string(i) + ")", rank == i, accelerator.on_process(i, seven));
  }
}

void check_order_of_processes(Accelerator& accelerator, Findings& findings) {
  check_first(accelerator, findings, "local_main_process_first", accelerator.is_local_main_process(),
              [&] { return accelerator.local_main_process_first(); });
  check_first(accelerator, findings, "main_process_first", accelerator.is_main_process(),
              [&] { return accelerator.main_process_first(); });
}

void check_triggers(Accelerator& accelerator, Findings& findings) {
  findings.expect(!accelerator.check_trigger(), "no trigger is set to begin with");
  for (int setter = 0; setter < accelerator.num_processes(); ++setter) {
    if (accelerator.process_index() == setter) accelerator.set_trigger();
    findings.expect(accelerator.check_trigger(), "every process sees a trigger that rank " + std::to_string(setter) + " has set");
    findings.expect(!accelerator.check_trigger(), "check_trigger resets the trigger");
  }
}

void check_splitting(Accelerator& accelerator, Findings& findings) {
  const int64_t rank = accelerator.process_index(), world = accelerator.num_processes();
  findings.equal(accelerator.split_between_processes(range(0, 2 * world)), range(2 * rank, 2 * rank + 2),
                 "a list of twice the world size gives each rank two elements");
  const int64_t extra = 17 % world, share = 17 / world;
  const int64_t start = rank * share + std::min(rank, extra);
  const auto mine = range(start, start + share + (rank < extra ? 1 : 0));
  findings.equal(accelerator.split_between_processes(range(0, 17)), mine, "the first ranks get the remaining elements of 17");
  findings.equal(numbers_of(accelerator.split_between_processes(integers(accelerator, range(0, 17)))), mine,
                 "a tensor is split as a list is");
  using Columns = std::map<std::string, Numbers>;
  const auto columns = accelerator.split_between_processes(Columns{{"a", range(0, 17)}, {"b", range(100, 117)}});
  findings.equal(columns.at("a"), mine, "a dictionary is split by its lists");
  const auto padded = accelerator.split_between_processes(range(0, 2 * world - 1), {.apply_padding = true});
  findings.equal(static_cast<int64_t>(padded.size()), (2 * world - 1 + world - 1) / world,
                 "padding makes all parts equally long");
  auto all = accelerator.gather_object(padded);
  findings.expect(all.size() >= static_cast<size_t>(2 * world - 1), "no element is lost by padding");
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  findings.equal(all, range(0, 2 * world - 1), "the padded parts together are the list");
}

}  // namespace accelerate::self_test
