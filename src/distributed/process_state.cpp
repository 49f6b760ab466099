#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/process_state.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <charconv>

#include "distributed/communicator.h"
#include "distributed/group_making.h"
#include "distributed/store_scopes.h"

namespace accelerate {

using namespace detail;
namespace {

int cuda_devices() {
  if (!at::hasCUDA()) return 0;
  return c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
}

at::Device named_device(const std::string& text) {
  try {
    return at::Device(text);
  } catch (const std::exception&) {
    throw ConfigError("ACCELERATE_TORCH_DEVICE=" + text + ": expected a device such as cpu, cuda or cuda:1.");
  }
}

/// Seconds after which a wait is reported; 0: never.
std::chrono::milliseconds warning_time(const Environment& environment, const char* variable, std::chrono::seconds fallback) {
  const auto text = environment(variable);
  if (!text) return fallback;
  double seconds = -1;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  // A year is as good as never, and fits.
  if (problem != std::errc() || end != text->data() + text->size() || !(seconds >= 0) || seconds > 3.2e7) {
    throw ConfigError(std::string(variable) + "=" + *text + ": expected a number of seconds, or 0 for no warnings.");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

/// The device of this process. CPU processes of a group are all on "cpu:0", as in Python.
at::Device choose_device(const LaunchEnvironment& me, const ProcessStateOptions& options, bool grouped) {
  const bool cpu = options.cpu || flag_from(options.environment, "ACCELERATE_USE_CPU", false);
  const auto named = options.environment("ACCELERATE_TORCH_DEVICE");
  if (named && !cpu) return named_device(*named);
  const int count = cpu ? 0 : cuda_devices();
  if (count == 0) return grouped ? at::Device(at::kCPU, 0) : at::Device(at::kCPU);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(me.local_process_index % count));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

/// For launchers inside a program: threads and sockets of a group do not survive a fork.
std::atomic<int> living = 0;

}  // namespace

int detail::living_process_states() { return living; }

struct ProcessState::Facts {
  Facts() { ++living; }
  ~Facts() { --living; }
  Facts(const Facts&) = delete;
  Facts& operator=(const Facts&) = delete;

  LaunchEnvironment me;
  BackendOptions backends;
  std::chrono::milliseconds hang_threshold{};
  DistributedType type = DistributedType::no;
  std::string backend;
  bool debug = false;
  std::shared_ptr<Communicator> communicator;

  void begin(std::source_location where);
};

const char* to_string(DistributedType type) {
  switch (type) {
    case DistributedType::multi_cpu:
      return "DistributedType.MULTI_CPU";
    case DistributedType::multi_gpu:
      return "DistributedType.MULTI_GPU";
    case DistributedType::no:
      break;
  }
  return "DistributedType.NO";
}

ProcessState::ProcessState(ProcessStateOptions options) {
  auto facts = std::make_shared<Facts>();
  facts->debug = flag_from(options.environment, "ACCELERATE_DEBUG_MODE", false);
  facts->backends = {.timeout = options.timeout, .interface_is_named = options.environment("GLOO_SOCKET_IFNAME").has_value()};
  const bool borrowed = static_cast<bool>(options.process_group);
  if (borrowed) {
    facts->communicator = std::make_shared<Communicator>(borrow_group(options.process_group, facts->backends));
    facts->me = place_in(*facts->communicator);
  } else {
    facts->me = read_launch_environment(options.environment);
  }
  facts->backends.device = choose_device(facts->me, options, facts->me.launched);
  if (facts->me.launched) {
    facts->hang_threshold = warning_time(options.environment, "ACCELERATE_HANG_WARNING_SECONDS", std::chrono::seconds(30));
    facts->backends.notice_after =
        warning_time(options.environment, "ACCELERATE_RENDEZVOUS_WARNING_SECONDS", std::chrono::seconds(10));
    if (!borrowed)
      facts->communicator = std::make_shared<Communicator>(make_group(facts->me, options.environment, facts->backends));
    facts->begin(std::source_location::current());
  }
  facts_ = std::move(facts);
}

/// Of a group that has just connected.
void ProcessState::Facts::begin(std::source_location where) {
  backend = communicator->transport().backend_name(backends.device.type());
  communicator->watch(me.machine, hang_threshold, where);
  type = backends.device.is_cuda() ? DistributedType::multi_gpu : DistributedType::multi_cpu;
}

ProcessState ProcessState::split_group(int color, std::source_location where) const {
  if (!facts_->communicator) return *this;
  if (facts_->debug) facts_->communicator->agree("split_group", "", where);
  auto group = detail::split_group(facts_->communicator, facts_->me, color, facts_->backends, where);
  auto facts = std::make_shared<Facts>();
  facts->me = std::move(group.me);
  facts->backends = facts_->backends;
  facts->hang_threshold = facts_->hang_threshold;
  facts->debug = facts_->debug;
  facts->communicator = std::make_shared<Communicator>(std::move(group.parts));
  facts->begin(where);
  ProcessState state = *this;
  state.facts_ = std::move(facts);
  return state;
}

int ProcessState::num_processes() const { return facts_->me.num_processes; }
int ProcessState::process_index() const { return facts_->me.process_index; }
int ProcessState::local_process_index() const { return facts_->me.local_process_index; }
DistributedType ProcessState::distributed_type() const { return facts_->type; }
const std::string& ProcessState::backend() const { return facts_->backend; }
c10::Device ProcessState::device() const { return facts_->backends.device; }
bool ProcessState::debug() const { return facts_->debug; }
const std::shared_ptr<Communicator>& ProcessState::communicator() const { return facts_->communicator; }

void ProcessState::wait_for_everyone(std::source_location where) const {
  if (!facts_->communicator) return;
  if (facts_->debug) facts_->communicator->agree("wait_for_everyone", "", where);
  facts_->communicator->barrier("wait_for_everyone", where);
}

FirstScope ProcessState::main_process_first(std::source_location where) const {
  const auto& peers = facts_->communicator;
  if (!peers) return {nullptr, ""};
  const bool first = is_main_process();
  const auto key = peers->scopes().enter("main_process_first", "first/", first, 0, where);
  return {first ? peers : nullptr, key};
}

FirstScope ProcessState::local_main_process_first(std::source_location where) const {
  const auto& peers = facts_->communicator;
  if (!peers) return {nullptr, ""};
  const bool first = is_local_main_process();
  const auto key =
      peers->scopes().enter("local_main_process_first", "first/" + facts_->me.machine + "/", first, peers->first_here(), where);
  return {first ? peers : nullptr, key};
}

FirstScope::FirstScope(std::shared_ptr<Communicator> communicator, std::string key)
    : communicator_(std::move(communicator)), key_(std::move(key)) {}

FirstScope::~FirstScope() {
  if (communicator_) communicator_->scopes().signal(key_);
}

std::string to_string(const ProcessState& state) {
  return std::string("Distributed environment: ") + to_string(state.distributed_type()) +
         (state.backend().empty() ? "" : "  Backend: " + state.backend()) +
         "\nNum processes: " + std::to_string(state.num_processes()) +
         "\nProcess index: " + std::to_string(state.process_index()) +
         "\nLocal process index: " + std::to_string(state.local_process_index()) + "\nDevice: " + state.device().str() + "\n";
}

}  // namespace accelerate
