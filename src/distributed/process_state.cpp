#include <ATen/Context.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/process_state.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <charconv>

#include "core/pipe_signal.h"
#include "distributed/c10d_transport.h"
#include "distributed/communicator.h"
#include "distributed/nccl.h"
#include "distributed/store_scopes.h"
#include "rendezvous/bounded.h"
#include "rendezvous/rendezvous.h"

namespace accelerate {

using namespace detail;
namespace {

// Python's defaults. The rendezvous has its own timeout: a typo should not cost half an hour.
constexpr std::chrono::minutes kGlooTimeout{30}, kNcclTimeout{10}, kRendezvousPatience{5};

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

/// When a waiting call is reported.
std::chrono::milliseconds hang_threshold(const Environment& environment) {
  constexpr const char* kVariable = "ACCELERATE_HANG_WARNING_SECONDS";
  const auto text = environment(kVariable);
  if (!text) return std::chrono::seconds(30);
  double seconds = -1;
  const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  // A year is as good as never, and fits.
  if (problem != std::errc() || end != text->data() + text->size() || !(seconds >= 0) || seconds > 3.2e7) {
    throw ConfigError(std::string(kVariable) + "=" + *text + ": expected a number of seconds, or 0 for no warnings.");
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

/// Processes of one host meet on the loopback interface, whatever the host's own name resolves to.
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const LaunchEnvironment& me, const Environment& environment,
                                                                 std::chrono::milliseconds timeout) {
  if (!on_one_host(me) || environment("GLOO_SOCKET_IFNAME")) return c10d::ProcessGroupGloo::Options::create_default(timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return options;
}

/// Returns when every process has reached the same `stage`; names those that have not.
void meet(const LaunchEnvironment& me, const c10::intrusive_ptr<c10d::Store>& store, const std::string& stage,
          std::chrono::milliseconds patience) {
  within(patience + std::chrono::seconds(1), "the rendezvous store does not answer", [=] {
    std::vector<std::string> keys;
    for (int rank = 0; rank < me.num_processes; ++rank) keys.push_back(stage + "/" + std::to_string(rank));
    store->set(keys[static_cast<size_t>(me.process_index)], std::vector<uint8_t>{1});
    try {
      store->wait(keys, patience);
    } catch (const std::exception&) {
      std::string missing;
      for (int rank = 0; rank < me.num_processes; ++rank) {
        if (!store->check({keys[static_cast<size_t>(rank)]})) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
      throw std::runtime_error("these ranks did not join within " + std::to_string(patience.count() / 1000) +
                               " s: " + (missing.empty() ? "none, but some joined too late" : missing) +
                               ". Start all of them, with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE");
    }
  });
}

GroupParts make_group(const LaunchEnvironment& me, const ProcessStateOptions& options, at::Device device) {
  const WithoutPipeSignal for_their_threads;
  GroupParts parts;
  parts.timeout = options.timeout.value_or(kGlooTimeout);
  const std::chrono::milliseconds patience = std::min<std::chrono::milliseconds>(parts.timeout, kRendezvousPatience);
  parts.first_serves_store = !me.agent_hosts_store;
  try {
    parts.store = join_store(me, options.environment, patience);
    auto group = c10::make_intrusive<c10d::ProcessGroup>(parts.store, me.process_index, me.num_processes);
    auto gloo =
        c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", parts.store), me.process_index,
                                                    me.num_processes, gloo_options(me, options.environment, parts.timeout));
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    c10::intrusive_ptr<c10d::Backend> device_backend;
    if (device.is_cuda()) {
      device_backend = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", parts.store), me.process_index,
                                         me.num_processes, options.timeout.value_or(kNcclTimeout));
      const auto type = device_backend ? c10d::ProcessGroup::BackendType::NCCL : c10d::ProcessGroup::BackendType::GLOO;
      group->setBackend(at::kCUDA, type, device_backend ? device_backend : c10::intrusive_ptr<c10d::Backend>(gloo));
      group->setDefaultBackend(type);
    }
    parts.transport = std::make_unique<C10dTransport>(std::move(group), std::move(device_backend));
    // One that was done early and left again would cut off those that are still connecting.
    meet(me, parts.store, "connected", patience);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw DistributedError("Rank " + std::to_string(me.process_index) + " of " + std::to_string(me.num_processes) +
                           " could not connect to its peers: " + words_of(error));
  }
  note_group_made(me);
  return parts;
}

GroupParts borrow_group(const ProcessStateOptions& options) {
  GroupParts parts;
  auto group = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(options.process_group.get());
  parts.owned = false;
  parts.timeout = options.timeout.value_or(kGlooTimeout);
  if (auto store = group->getStore()) {
    // The number of accelerators this rank has made on the group: the same on every rank, and other keys for each.
    const auto number = store->add("accelerate/made/" + std::to_string(group->getRank()), 1);
    parts.store = c10::make_intrusive<c10d::PrefixStore>("accelerate/application/" + std::to_string(number), store);
  }
  parts.transport = std::make_unique<C10dTransport>(std::move(group));
  return parts;
}

/// Who this process is in a group of the application's own: processes of one host are those with its host name.
LaunchEnvironment place_in(Communicator& peers) {
  LaunchEnvironment me = read_launch_environment([](const std::string&) { return std::nullopt; });
  me.launched = true;
  me.process_index = peers.rank();
  me.num_processes = peers.size();
  me.local_num_processes = 0;
  const auto machines = peers.all_gather_bytes(me.machine, "joining a process group", std::source_location::current());
  for (int rank = 0; rank < me.num_processes; ++rank) {
    if (machines[static_cast<size_t>(rank)] != me.machine) continue;
    if (rank == me.process_index) me.local_process_index = me.local_num_processes;
    ++me.local_num_processes;
  }
  return me;
}

}  // namespace

namespace {

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
  at::Device device = at::kCPU;
  DistributedType type = DistributedType::no;
  std::string backend;
  bool debug = false;
  std::shared_ptr<Communicator> communicator;
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
  const bool borrowed = static_cast<bool>(options.process_group);
  if (borrowed) {
    facts->communicator = std::make_shared<Communicator>(borrow_group(options));
    facts->me = place_in(*facts->communicator);
  } else {
    facts->me = read_launch_environment(options.environment);
  }
  facts->device = choose_device(facts->me, options, facts->me.launched);
  if (facts->me.launched) {
    if (!borrowed) facts->communicator = std::make_shared<Communicator>(make_group(facts->me, options, facts->device));
    facts->backend = facts->communicator->transport().backend_name(facts->device.type());
    facts->communicator->watch(facts->me.machine, hang_threshold(options.environment), std::source_location::current());
    facts->type = facts->device.is_cuda() ? DistributedType::multi_gpu : DistributedType::multi_cpu;
  }
  facts_ = std::move(facts);
}

int ProcessState::num_processes() const { return facts_->me.num_processes; }
int ProcessState::process_index() const { return facts_->me.process_index; }
int ProcessState::local_process_index() const { return facts_->me.local_process_index; }
DistributedType ProcessState::distributed_type() const { return facts_->type; }
const std::string& ProcessState::backend() const { return facts_->backend; }
c10::Device ProcessState::device() const { return facts_->device; }
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
