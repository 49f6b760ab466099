// Runs that save: killed at chosen instants of a save, out of luck in other ways, or left alone.
#include <accelerate/accelerate.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "scene.h"

namespace {

using accelerate::Accelerator;

std::string folder;

using accelerate::testing::say;

int number_from(const char* variable, int fallback) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : fallback;
}

// --- An instant to die at -------------------------------------------------------------------------------------------------

/// Changes of the file system that are left until the end comes; below 0: there is no such end.
std::atomic<int> operations_left = -1;
std::vector<int> doomed;  // the processes that die
std::atomic<bool> dead = false;

void die() {
  dead = true;
  for (const int process : doomed) ::kill(process, SIGKILL);
  if (std::find(doomed.begin(), doomed.end(), ::getpid()) == doomed.end()) return;
  for (;;) ::pause();
}

/// The threads that save behind the run begin to change the file system when this is true.
std::function<bool()> may_write;
std::atomic<bool> writes = false;

void count_operation() {
  while (may_write && !writes && ::gettid() != ::getpid()) {
    if (may_write()) writes = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (operations_left >= 0 && operations_left-- == 0) die();
}

/// A call that the system refuses, of those that a save or a load makes; or, of a disk that is full and stays so, all from there
/// on.
struct Refusal {
  /// Calls of this process until it comes; below 0: none does.
  std::atomic<int> calls_left = -1;
  std::atomic<int> reason = EIO;
  std::atomic<bool> lasts = false;
  std::atomic<bool> came = false;

  bool comes() {
    if (calls_left < 0) return false;
    if (calls_left > 0 && calls_left-- > 0) return false;
    if (!lasts) calls_left = -1;
    came = true;
    errno = reason;
    return true;
  }
  void begin(int calls, int with, bool lasting) {
    came = false;
    reason = with;
    lasts = lasting;
    calls_left = calls;
  }
  void end() { calls_left = -1; }
} refusal;

/// What a file system may lack: atomic swaps of two folders, as NFS does, hard links, locks.
std::atomic<bool> no_exchange = std::getenv("ACCELERATE_TEST_NO_EXCHANGE") != nullptr;
std::atomic<bool> no_links = false, no_locks = std::getenv("ACCELERATE_TEST_NO_LOCKS") != nullptr;
/// This many threads can still be made; below 0: any number.
std::atomic<int> threads_left = -1;
std::atomic<int> synced_files = 0;
/// As on a network file system that does not show yet what other hosts have written.
std::atomic<bool> reports_hidden = false;
/// A file that somebody else removes when the manifest is written.
std::string lost_with_manifest;

}  // namespace

// What a save asks of the file system, one by one, in place of the functions of the C library.
extern "C" {
int fsync(int file) {
  count_operation();
  ++synced_files;
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fsync, file));
}
int rename(const char* from, const char* to) noexcept {
  if (!lost_with_manifest.empty() && std::string_view(to).ends_with("accelerate_manifest.json"))
    ::syscall(SYS_unlinkat, AT_FDCWD, lost_with_manifest.c_str(), 0);
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  if (no_exchange && flags == RENAME_EXCHANGE) {
    errno = EINVAL;
    return -1;
  }
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}
int linkat(int from_at, const char* from, int to_at, const char* to, int flags) noexcept {
  if (no_links) {
    errno = EOPNOTSUPP;
    return -1;
  }
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_linkat, from_at, from, to_at, to, flags));
}
int mkdir(const char* name, mode_t mode) noexcept {
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, name, mode));
}
int unlinkat(int at, const char* name, int flags) noexcept {
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_unlinkat, at, name, flags));
}
int open(const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_openat, AT_FDCWD, name, flags, mode));
}
int openat(int at, const char* name, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_openat, at, name, flags, mode));
}
int fcntl(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void* const argument = va_arg(more, void*);
  va_end(more);
  if (no_locks && (command == F_SETLK || command == F_GETLK)) {
    errno = ENOLCK;
    return -1;
  }
  return command == F_SETLK && refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fcntl, file, command, argument));
}
int chmod(const char* name, mode_t mode) noexcept {
  count_operation();
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_fchmodat, AT_FDCWD, name, mode));
}
int remove(const char* name) noexcept {
  count_operation();
  if (refusal.comes()) return -1;
  const auto result = ::syscall(SYS_unlinkat, AT_FDCWD, name, 0);
  return static_cast<int>(result != 0 && errno == EISDIR ? ::syscall(SYS_unlinkat, AT_FDCWD, name, AT_REMOVEDIR) : result);
}
int stat(const char* name, struct stat* status) noexcept {
  if (reports_hidden && std::string_view(name).find("/report_") != std::string_view::npos) {
    errno = ENOENT;
    return -1;
  }
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, 0));
}
int lstat(const char* name, struct stat* status) noexcept {
  return refusal.comes() ? -1 : static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, name, status, AT_SYMLINK_NOFOLLOW));
}
ssize_t pread(int file, void* bytes, size_t size, off_t offset) {
  return refusal.comes() ? -1 : ::syscall(SYS_pread64, file, bytes, size, offset);
}
ssize_t write(int file, const void* bytes, size_t size) {
  return file > 2 && refusal.comes() ? -1 : ::syscall(SYS_write, file, bytes, size);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) noexcept {
  if (threads_left >= 0 && threads_left-- <= 0) {
    threads_left = 0;
    return EAGAIN;
  }
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, body, argument);
}
}

namespace {

/// When and who. Dice are thrown by the seed of the test and the number of the attempt.
struct Death {
  bool comes = false;
  /// A process, or above the last one: all at once.
  int who = 0;
  /// In which save of this attempt.
  int save = 0;
  /// After so many changes of the file system by process 0, or if negative:
  int operations = 0;
  /// after this part of the time that a save takes, or when the next one begins: the save that was measured may have been slow.
  double part = 0;
};

Death throw_dice() {
  const int attempt = number_from("TORCHELASTIC_RESTART_COUNT", 0);
  std::mt19937 random(static_cast<unsigned>(number_from("ACCELERATE_TEST_SEED", 0) * 1000 + attempt));
  const auto one_of = [&](unsigned count) { return static_cast<int>(random() % count); };
  Death death{.comes = attempt < number_from("ACCELERATE_TEST_KILLS", 0)};
  death.who = one_of(static_cast<unsigned>(number_from("WORLD_SIZE", 1)) + 1);
  death.save = 1 + one_of(2);  // not the first: its duration is measured
  death.operations = one_of(2) == 0 ? one_of(60) : -1;
  death.part = one_of(1200) / 1000.0;
  return death;
}

/// Prepares the death for the save that begins now.
class Reaper {
 public:
  Reaper(const Death& death, const Accelerator& accelerator) : death_(death) {
    const auto processes = accelerator.gather_object(std::vector<int>{::getpid()});
    const int count = static_cast<int>(processes.size());
    for (int i = 0; i < count; ++i) {
      if (death.who == count || death.who == i) doomed.push_back(processes[static_cast<size_t>(i)]);
    }
    is_main_ = accelerator.is_main_process();
  }
  ~Reaper() {
    if (thread_.joinable()) thread_.join();
  }

  void begin_save() {
    begun_ = std::chrono::steady_clock::now();
    if (!death_.comes || !is_main_) return;
    const int save = count_++;
    if (save > death_.save && death_.operations < 0 && !dead) die();
    if (save != death_.save) return;
    if (death_.operations >= 0) {
      operations_left = death_.operations;
    } else {
      thread_ = std::thread([wait = death_.part * duration_] {
        std::this_thread::sleep_for(wait);
        die();
      });
    }
  }
  void end_save() { duration_ = std::chrono::steady_clock::now() - begun_; }

 private:
  Death death_;
  bool is_main_ = false;
  int count_ = 0;
  std::chrono::steady_clock::time_point begun_ = {};
  std::chrono::duration<double> duration_{0.05};
  std::thread thread_;
};

// --- The run --------------------------------------------------------------------------------------------------------------

struct Progress {
  int64_t epoch = 0, step = 0;
  accelerate::StateDict state_dict() const { return {{"epoch", epoch}, {"step", step}}; }
  void load_state_dict(const accelerate::StateDict& state) {
    epoch = state.at("epoch").get<int64_t>();
    step = state.at("step").get<int64_t>();
  }
};

/// Everything that is there must be whole, not the newest alone.
void load_all(Accelerator& accelerator) {
  std::vector<std::string> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints", none)) found.push_back(entry.path());
  accelerator.broadcast_object_list(found);
  for (const auto& each : found) accelerator.load_state(each);
}

/// Saves after every step of 40, and says on the way how far it is sure to be.
void train(bool async) {
  accelerate::set_seed(7);
  Accelerator accelerator({.project = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 2}});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.1), torch::nn::Linear(8, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto x = torch::randn({20 * accelerator.num_processes(), 4});
  accelerate::DataLoader data(accelerate::TensorDataset(x, x.sum(1, true)), {.batch_size = 1, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  load_all(accelerator);
  accelerator.load_state();
  accelerator.print("resumed at {}", progress.step);
  Reaper reaper(throw_dice(), accelerator);
  int64_t under_way = progress.step;
  for (; progress.epoch < 2; ++progress.epoch) {
    for (auto& [inputs, targets] : loader) {
      accelerator.backward(torch::mse_loss(model(inputs), targets));
      optimizer.step();
      optimizer.zero_grad();
      ++progress.step;
      reaper.begin_save();
      if (accelerator.is_main_process()) say("begun " + std::to_string(progress.step));
      accelerator.save_state({.async = async});
      reaper.end_save();
      const int64_t durable = async ? under_way : progress.step;  // of an earlier one, the next call tells
      if (accelerator.is_main_process()) say("durable " + std::to_string(durable));
      under_way = progress.step;
    }
  }
  accelerator.end_training();
  double sum = 0;
  for (const auto& parameter : net->parameters()) sum += parameter.abs().sum().item<double>();
  accelerator.print("steps {} checksum {:.17g}", progress.step, sum);
}

// --- Every instant --------------------------------------------------------------------------------------------------------

/// Calls `save` in a copy of this process that dies at its first change of the file system, its second, and so on, until one
/// lives to the end of it. After each death `check` looks at what there is.
void die_at_every_instant(const std::string& what, const std::function<void()>& save, const std::function<void()>& check) {
  int instants = 0;
  for (bool died = true; died; ++instants) {
    const pid_t copy = ::fork();
    if (copy == 0) {
      doomed = {::getpid()};
      operations_left = instants;
      save();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(copy, &status, 0);
    died = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!died && status != 0) throw std::runtime_error(what + ": the copy failed");
    check();
  }
  say(what + ": " + (instants > 10 ? "many" : "few") + " instants");
}

struct Number {
  int64_t value = 0;
  accelerate::StateDict state_dict() const { return {{"value", value}}; }
  void load_state_dict(const accelerate::StateDict& state) { value = state.at("value").get<int64_t>(); }
};

void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

/// Automatic names: whatever is seen is whole, and the newest is the old one or the new one. With `iteration`: always that one.
void every_instant_of_a_numbered_save(std::optional<int64_t> iteration) {
  const accelerate::ProjectConfiguration project = {
      .project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 1, .iteration = iteration};
  Accelerator accelerator({.project = project});
  torch::nn::Linear net(4, 4);
  accelerator.prepare(net);
  Number number{.value = 1};
  accelerator.register_for_checkpointing(number);
  int64_t newest = 0;
  const auto save = [&] {
    number.value = newest + 1;
    Accelerator next({.project = project});
    next.prepare(net);
    next.register_for_checkpointing(number);
    next.save_state();
  };
  save();
  newest = 1;
  int deaths = 0;
  die_at_every_instant("numbered", save, [&] {
    if (++deaths % 2 == 0) {  // the next run saves before it has loaded anything
      ++newest;
      save();
      ++newest;
    }
    load_all(accelerator);
    require(accelerator.load_state().has_value(), "there is none");
    require(number.value == newest || number.value == newest + 1, "neither the old nor the new one");
    newest = number.value;
  });
}

/// A name that is used again: the old one or the new one, and what else lies there.
void every_instant_of_a_replacing_save() {
  Accelerator accelerator;
  torch::nn::Linear net(4, 4);
  accelerator.prepare(net);
  Number number{.value = 1};
  accelerator.register_for_checkpointing(number);
  const std::string target = folder + "/same";
  accelerator.save_state(target);
  std::ofstream(target + "/notes.txt") << "mine";
  int64_t newest = 1;
  const auto save = [&] {
    number.value = newest + 1;
    accelerator.save_state(target);
  };
  int deaths = 0;
  die_at_every_instant("replacing", save, [&] {
    if (++deaths % 2 == 0) {  // the next run saves before it has loaded anything
      ++newest;
      save();
      ++newest;
    }
    accelerator.load_state(target);
    require(number.value == newest || number.value == newest + 1, "neither the old nor the new one");
    require(std::filesystem::exists(target + "/notes.txt"), "the notes are gone");
    newest = number.value;
  });
}

/// Weights for others: the old set, the new one, or none that could be mistaken for one.
void every_instant_of_save_model() {
  const std::string target = folder + "/model";
  const auto weights = [](double value) {
    accelerate::TensorDict tensors;
    for (const auto* name : {"a", "b", "c"}) tensors[name] = torch::full({100}, value);
    return tensors;
  };
  double value = 0;
  for (const std::string shards : {"0.4KB", "10MB", "0.8KB"}) {
    const auto save = [&] { accelerate::save_weights(weights(value), target, {.max_shard_size = shards}); };
    save();
    ++value;
    die_at_every_instant("weights", save, [&] {
      try {
        std::set<double> seen;
        for (const auto& item : accelerate::load_weights(target)) seen.insert(item.second.mean().item<double>());
        require(seen == std::set<double>{value} || seen == std::set<double>{value - 1}, "half old and half new");
      } catch (const accelerate::CheckpointError&) {
        // Nothing is better than a mixture.
      }
    });
  }
}

// --- Other ends -----------------------------------------------------------------------------------------------------------

struct Saved {
  Saved() : accelerator({.timeout = std::chrono::seconds(40)}), net(64, 64), sgd(net->parameters(), 0.1) {
    accelerator.prepare(net, sgd);
  }
  Accelerator accelerator;
  torch::nn::Linear net;
  torch::optim::SGD sgd;
};

std::string heard(const Accelerator& accelerator, const std::function<void()>& call) {
  const std::string who = "process " + std::to_string(accelerator.process_index());
  try {
    call();
    return who + " heard nothing";
  } catch (const accelerate::Error& error) {
    return who + " heard: " + error.what();
  }
}

/// The last process dies in the middle of a save, when the folder has been made.
void dies_in_save() {
  Saved run;
  run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    if (run.accelerator.is_last_process()) std::raise(SIGKILL);
  });
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder + "/saved"); }));
}

/// It dies when its part has to be written by the thread behind it.
void dies_in_async_save() {
  Saved run;
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_last_process()) {
    doomed = {::getpid()};
    operations_left = 0;
  }
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// Nobody waits for what is being written. One rank writes its part when all others have written theirs.
void leaves_while_saving() {
  Saved run;
  if (run.accelerator.process_index() == number_from("ACCELERATE_TEST_LAST", 0)) {
    may_write = [me = run.accelerator.process_index(), count = run.accelerator.num_processes()] {
      for (int i = 0; i < count; ++i) {
        const std::string report = folder + "/.saved.unfinished/report_" + std::to_string(i) + ".json";
        if (i != me && !std::filesystem::exists(report)) return false;
      }
      return true;
    };
  }
  run.accelerator.save_state(folder + "/saved", {.async = true});
}

/// A rank dies before it has written its part; the others end without asking for the checkpoint.
void dies_behind_the_run() {
  Saved run;
  if (run.accelerator.is_last_process()) may_write = [] { return false; };
  run.accelerator.save_state(folder + "/saved", {.async = true});
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_last_process()) std::raise(SIGKILL);
}

/// No rank sees the reports of the others.
void sees_no_reports() {
  Saved run;
  reports_hidden = true;
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

/// The main process dies when its part is written, and the other one writes on as soon as it is told to.
void outlives_the_main_process() {
  Saved run;
  if (!run.accelerator.is_main_process()) may_write = [] { return std::filesystem::exists(folder + "/write_on"); };
  run.accelerator.save_state(folder + "/saved", {.async = true});
  run.accelerator.wait_for_everyone();
  if (run.accelerator.is_main_process()) {
    while (!std::filesystem::exists(folder + "/.saved.unfinished/report_0.json")) std::this_thread::yield();
    std::raise(SIGKILL);
  }
  say("still writing");
}

/// An exception ends the run while a save is under way.
void throws_while_saving() {
  Saved run;
  run.accelerator.save_state(folder + "/saved", {.async = true});
  throw std::runtime_error("on purpose");
}

/// Hosts that keep their own checkpoints resume from one that all of them have.
void machines_of_their_own() {
  const std::string project = folder + "/machine_" + std::getenv("GROUP_RANK");
  Accelerator accelerator({.project = {.project_dir = project, .automatic_checkpoint_naming = true, .save_on_each_node = true}});
  const std::string who = "process " + std::to_string(accelerator.process_index());
  for (int i = 0; i < 3; ++i) accelerator.save_state({.async = i == 1});
  const auto lose = [&](const std::string& name) {
    if (accelerator.is_last_process()) std::filesystem::remove_all(project + "/checkpoints/" + name);
    accelerator.wait_for_everyone();
  };
  say(who + " finds " + accelerator.load_state()->filename().string());
  lose("checkpoint_2");
  say(who + " finds " + accelerator.load_state()->filename().string());
  for (const std::string name : {"checkpoint_0", "checkpoint_1"}) lose(name);
  say(heard(accelerator, [&] { accelerator.load_state(); }));
}

// --- Refusals -------------------------------------------------------------------------------------------------------------

/// A save into a folder that also has notes of the user's, or among numbered ones.
class Scene {
 public:
  Scene(std::string project, bool numbered, bool async) : project_(std::move(project)), numbered_(numbered), async_(async) {
    begin();
    save();
    durable_ = number_.value;
    if (!numbered_ && run_->is_main_process()) std::ofstream(own_folder() + "/notes.txt") << "mine";
    run_->wait_for_everyone();
  }

  /// Returns whether it was said to have gone well.
  bool try_to_save() {
    number_.value = ++attempted_;
    try {
      save();
      durable_ = attempted_;
      return true;
    } catch (const accelerate::CheckpointError& error) {
      require(*error.what() != 0, "an error without a word");
      return false;
    }
  }

  /// Loads what check() would find, or hears why not. What cannot be read is not mistaken for corrupt or missing.
  bool try_to_load() {
    try {
      load();
      return true;
    } catch (const accelerate::CheckpointError& error) {
      require(*error.what() != 0, "an error without a word");
      return false;
    }
  }

  /// What was durable, or what was attempted since, is there, with everything else.
  void check(bool by_another_run) {
    if (by_another_run) begin();
    load();
    require(numbered_ || std::filesystem::exists(own_folder() + "/notes.txt"), "the notes are gone");
    durable_ = number_.value;
  }
  /// Somebody else has tried to save.
  void allow_attempt() { ++attempted_; }
  Accelerator& run() { return *run_; }

 private:
  void load() {
    number_.value = -1;
    if (numbered_) {
      require(run_->load_state().has_value(), "there is no checkpoint");
    } else {
      run_->load_state(own_folder());
    }
    require(number_.value >= durable_ && number_.value <= attempted_,
            "the checkpoint holds " + std::to_string(number_.value) + " and not " + std::to_string(durable_));
  }
  std::string own_folder() const { return project_ + "/same"; }
  void begin() {
    run_.reset();
    run_ = std::make_unique<Accelerator>(accelerate::AcceleratorOptions{
        .project = {.project_dir = project_, .automatic_checkpoint_naming = numbered_, .total_limit = 2},
        .timeout = std::chrono::seconds(40)});
    run_->prepare(net_);
    run_->register_for_checkpointing(number_);
  }
  void save() {
    run_->save_state(numbered_ ? "" : own_folder(), {.async = async_});
    if (async_) run_->end_training();
  }

  const std::string project_;
  const bool numbered_, async_;
  torch::nn::Linear net_{4, 4};
  Number number_;
  int64_t durable_ = 0, attempted_ = 0;
  std::unique_ptr<Accelerator> run_;
};

/// Every call of a save is refused once, or with all calls after it; then every call of the load.
void every_refusal() {
  for (const int kind : {0, 1, 2, 3, 4, 5}) {
    const bool numbered = kind % 2 == 1, lasting = kind >= 4;
    no_exchange = kind == 2 || kind == 3 || kind == 4;
    no_links = no_locks = kind == 2;
    Scene scene(folder + "/" + std::to_string(kind), numbered, /*async=*/false);
    int refusals = 0;
    for (bool came = true; came; ++refusals) {
      refusal.begin(refusals, EIO, lasting);
      const bool saved = scene.try_to_save();
      refusal.end();
      came = refusal.came;
      require(came || saved, "nothing was refused, and it failed");
      scene.check(/*by_another_run=*/refusals % 3 == 0);
    }
    say("refusals of saves: " + std::string(refusals > 40 ? "many" : "few"));
    refusals = 0;
    for (bool came = true; came; ++refusals) {
      refusal.begin(refusals, EMFILE, lasting);
      const bool loaded = scene.try_to_load();
      refusal.end();
      came = refusal.came;
      require(came || loaded, "nothing was refused, and it failed");
      scene.check(/*by_another_run=*/false);
    }
    say("refusals of loads: " + std::string(refusals > 10 ? "many" : "few"));
  }
}

/// What happens to one save of a random scene.
enum class Trouble { none, refused, lasting, load_refused, no_thread, killed };

/// A copy of this process dies in the middle of a save; it may save where this one has ended.
bool killed_while_saving(Scene& scene, int when) {
  scene.run().end_training();
  const pid_t copy = ::fork();
  if (copy == 0) {
    doomed = {::getpid()};
    operations_left = when;
    scene.try_to_save();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(copy, &status, 0);
  scene.allow_attempt();
  return WIFSIGNALED(status);
}

/// Kills, refusals and threads that cannot be had, at random instants of all kinds of saves and loads.
void random_scenes() {
  const int count = number_from("ACCELERATE_TEST_SCENES", 20), seed = number_from("ACCELERATE_TEST_SEED", 0);
  const bool alone = number_from("WORLD_SIZE", 1) == 1;
  int troubles = 0;
  for (int i = 0; i < count; ++i) {
    std::mt19937 random(static_cast<unsigned>(seed * 100'000 + i));
    const auto one_of = [&](unsigned options) { return static_cast<int>(random() % options); };
    const bool numbered = one_of(2) == 0, async = one_of(2) == 0;
    constexpr int kReasons[] = {EIO, ENOSPC, EMFILE, EACCES, ESTALE};
    no_exchange = one_of(2) == 0;
    no_links = one_of(4) == 0;
    no_locks = one_of(4) == 0;
    const std::string project = folder + "/" + std::to_string(i);
    Scene scene(project, numbered, async);
    for (int save = 0; save < 3; ++save) {
      // Only a lone process can make a copy of itself; several are killed by Kills.
      const auto trouble = static_cast<Trouble>(one_of(alone ? 6 : 5));
      const int when = one_of(120), reason = kReasons[one_of(5)], who = one_of(3);
      const bool mine = alone || scene.run().process_index() == who % scene.run().num_processes();
      const auto refuse = [&] {
        if (mine) refusal.begin(when, reason, trouble == Trouble::lasting);
      };
      if (trouble == Trouble::killed) {
        troubles += killed_while_saving(scene, when);
      } else {
        if (trouble == Trouble::refused || trouble == Trouble::lasting) refuse();
        if (trouble == Trouble::no_thread && mine) threads_left = when % 3;
        troubles += !scene.try_to_save();
        threads_left = -1;
        refusal.end();
      }
      if (trouble == Trouble::load_refused) {
        refuse();
        troubles += !scene.try_to_load();
        refusal.end();
      }
      scene.check(/*by_another_run=*/one_of(2) == 0);
    }
    scene.run().wait_for_everyone();  // the others may still look
    if (scene.run().is_main_process()) std::filesystem::remove_all(project);
  }
  say(troubles > 0 ? "nothing lost" : "nothing happened");
}

/// The last rank has no thread to save with.
void no_thread_for_a_save() {
  Saved run;
  if (run.accelerator.is_last_process()) threads_left = 0;
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder + "/saved", {.async = true}); }));
  threads_left = -1;
  say(heard(run.accelerator, [&] {
    run.accelerator.save_state(folder + "/saved", {.async = true});
    run.accelerator.end_training();
  }));
}

void hook_files_are_durable() {
  Saved run;
  const auto syncs_of_a_save = [&] {
    const int before = synced_files;
    run.accelerator.save_state(folder + "/saved");
    return synced_files - before;
  };
  const int plain = syncs_of_a_save();
  run.accelerator.register_save_state_pre_hook([](auto&&, auto&&, const std::string& aside) {
    std::filesystem::create_directory(aside + "/below");
    std::ofstream(aside + "/mine") << "1";
    std::ofstream(aside + "/below/mine") << "2";
  });
  say("more: " + std::to_string(syncs_of_a_save() - plain));  // two files and a folder
}

// --- Several runs in one place --------------------------------------------------------------------------------------------

std::unique_ptr<Accelerator> run_in_project() {
  return std::make_unique<Accelerator>(
      accelerate::AcceleratorOptions{.project = {.project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = 1}});
}

void saves_and_waits() {
  const auto run = run_in_project();
  run->save_state();
  say("saved by " + std::to_string(::getpid()));
  ::pause();
}

void saves_once() {
  const auto run = run_in_project();
  say(heard(*run, [&] { run->save_state(); }));
}

/// Stays in the middle of a save to a folder of its own.
void waits_in_a_save() {
  Saved run;
  run.accelerator.register_save_state_pre_hook([](auto&&...) {
    say("saving");
    ::pause();
  });
  run.accelerator.save_state(folder + "/saved");
}

void saves_to_a_folder() {
  Saved run;
  say(heard(run.accelerator, [&] { run.accelerator.save_state(folder + "/saved"); }));
}

/// Where there are no locks another run may take away what is being written.
void saves_without_locks() {
  Saved run;
  const std::filesystem::path target = folder + "/saved", aside = folder + "/.saved.unfinished";
  run.accelerator.save_state(target);
  auto hook = run.accelerator.register_save_state_pre_hook([&](auto&&...) {
    std::filesystem::remove_all(aside);
    std::filesystem::create_directory(aside);
  });
  say(heard(run.accelerator, [&] { run.accelerator.save_state(target); }));
  hook.remove();
  lost_with_manifest = aside / "random_states_0.pkl";
  say(heard(run.accelerator, [&] { run.accelerator.save_state(target); }));
  lost_with_manifest.clear();
  run.accelerator.load_state(target);
  say("the checkpoint before is there");
}

void saves_many() {
  const auto run = run_in_project();
  torch::nn::Linear net(4, 4);
  run->prepare(net);
  for (int i = 0; i < 150; ++i) run->save_state();
}

/// Until the newest is the last one of saves_many.
void reads_many() {
  const auto run = run_in_project();
  torch::nn::Linear net(4, 4);
  run->prepare(net);
  for (std::string newest; newest != "checkpoint_149";) {
    if (const auto found = run->load_state()) newest = found->filename().string();
  }
  say("read all");
}

/// As somebody who may not write there. Training goes on, and what may be written is.
void may_not_write() {
  Saved run;
  auto& accelerator = run.accelerator;
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/closed/saved"); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/closed/saved", {.async = true}); }));
  say(heard(accelerator, [&] { accelerate::save_weights(accelerate::state_dict(*run.net), folder + "/closed"); }));
  say(heard(accelerator, [&] { accelerate::save_file(accelerate::state_dict(*run.net), folder + "/closed/a.safetensors"); }));
  say(heard(accelerator, [&] { accelerator.load_state(folder + "/unreadable"); }));
  Accelerator automatic({.project = {.project_dir = folder + "/hidden", .automatic_checkpoint_naming = true}});
  say(heard(automatic, [&] { automatic.load_state(); }));
  say(heard(accelerator, [&] { accelerator.save_state(folder + "/open/saved"); }));
}

}  // namespace

int main(int, char** argv) {
  folder = argv[2];
  return accelerate::testing::run_scene(argv[1],
                                        {{"train", [] { train(false); }},
                                         {"train_async", [] { train(true); }},
                                         {"dies_in_save", dies_in_save},
                                         {"dies_in_async_save", dies_in_async_save},
                                         {"leaves_while_saving", leaves_while_saving},
                                         {"dies_behind_the_run", dies_behind_the_run},
                                         {"sees_no_reports", sees_no_reports},
                                         {"outlives_the_main_process", outlives_the_main_process},
                                         {"throws_while_saving", throws_while_saving},
                                         {"machines_of_their_own", machines_of_their_own},
                                         {"every_instant_of_a_numbered_save", [] { every_instant_of_a_numbered_save({}); }},
                                         {"every_instant_of_the_same_number", [] { every_instant_of_a_numbered_save(3); }},
                                         {"every_instant_of_a_replacing_save", every_instant_of_a_replacing_save},
                                         {"every_instant_of_save_model", every_instant_of_save_model},
                                         {"may_not_write", may_not_write},
                                         {"every_refusal", every_refusal},
                                         {"random_scenes", random_scenes},
                                         {"no_thread_for_a_save", no_thread_for_a_save},
                                         {"hook_files_are_durable", hook_files_are_durable},
                                         {"saves_and_waits", saves_and_waits},
                                         {"saves_once", saves_once},
                                         {"waits_in_a_save", waits_in_a_save},
                                         {"saves_to_a_folder", saves_to_a_folder},
                                         {"saves_without_locks", saves_without_locks},
                                         {"saves_many", saves_many},
                                         {"reads_many", reads_many}});
}
