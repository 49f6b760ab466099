#include "distributed/group_making.h"

#include <accelerate/core/error.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "core/pipe_signal.h"
#include "elastic/network_interface.h"
#include "rendezvous/bounded.h"
#include "rendezvous/rendezvous.h"
#include "transport/c10d_transport.h"
#include "transport/nccl.h"

namespace accelerate::detail {
namespace {

// Python's defaults. The rendezvous has its own timeout: a typo should not cost half an hour.
constexpr std::chrono::minutes kGlooTimeout{30}, kNcclTimeout{10}, kRendezvousPatience{5};

constexpr const char* kSplitCall = "split_group";

/// Processes of one host meet on the loopback interface, whatever the host's own name resolves to. Those of several use the
/// interface by which rank 0 is reached: gloo's default is where the host's name leads, on Debian its loopback interface.
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> gloo_options(const LaunchEnvironment& me, const BackendOptions& backends) {
  const auto timeout = backends.timeout.value_or(kGlooTimeout);
  const std::string interface = on_one_host(me) || backends.interface_is_named ? "" : interface_to(me.master_address);
  if (backends.interface_is_named || (!on_one_host(me) && interface.empty()))
    return c10d::ProcessGroupGloo::Options::create_default(timeout);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices.push_back(interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                               : c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  return options;
}

/// Connects all processes that share `store`: gloo and, for GPUs, NCCL.
std::unique_ptr<Transport> connect(const LaunchEnvironment& me, const c10::intrusive_ptr<c10d::Store>& store,
                                   const BackendOptions& options) {
  const WithoutPipeSignal for_their_threads;
  using Type = c10d::ProcessGroup::BackendType;
  const int rank = me.process_index, size = me.num_processes;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store), rank, size,
                                                          gloo_options(me, options));
  group->setBackend(at::kCPU, Type::GLOO, gloo);
  group->setDefaultBackend(Type::GLOO);
  c10::intrusive_ptr<c10d::Backend> device_backend;
  if (options.device.is_cuda()) {
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(options.device);  // this thread's
    device_backend = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", store), rank, size,
                                       options.timeout.value_or(kNcclTimeout));
    const auto type = device_backend ? Type::NCCL : Type::GLOO;
    group->setBackend(at::kCUDA, type, device_backend ? device_backend : c10::intrusive_ptr<c10d::Backend>(gloo));
    group->setDefaultBackend(type);
  }
  return std::make_unique<C10dTransport>(std::move(group), std::move(device_backend));
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

/// Makes `me` the process with that number of several, which run on these hosts.
void take_place(LaunchEnvironment& me, int number, const std::vector<std::string>& machines) {
  me.process_index = number;
  me.num_processes = static_cast<int>(machines.size());
  me.local_num_processes = 0;
  for (int rank = 0; rank < me.num_processes; ++rank) {
    if (machines[static_cast<size_t>(rank)] != me.machine) continue;
    if (rank == number) me.local_process_index = me.local_num_processes;
    ++me.local_num_processes;
  }
}

/// gloo waits for its peers as long as for a collective, half an hour, and says nothing meanwhile.
std::unique_ptr<Transport> connect_within(std::chrono::milliseconds patience, const LaunchEnvironment& me,
                                          const c10::intrusive_ptr<c10d::Store>& store, const BackendOptions& options,
                                          WaitNotices notices) {
  const auto whom = [] {
    return "for the connections of gloo and NCCL to other ranks. They listen at any port: a firewall may drop what is sent "
           "there, or "
           "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface that other hosts do not reach.";
  };
  return within(
      patience, "gloo and NCCL could not connect to the other ranks in time. They listen at any port: check firewalls",
      [=] { return connect(me, store, options); }, [&] { notices.tell_if_due(rank_of(me), whom); });
}

}  // namespace

GroupParts make_group(const LaunchEnvironment& me, const Environment& environment, const BackendOptions& options) {
  GroupParts parts;
  parts.timeout = options.timeout.value_or(kGlooTimeout);
  const std::chrono::milliseconds patience = std::min<std::chrono::milliseconds>(parts.timeout, kRendezvousPatience);
  parts.first_serves_store = !me.agent_hosts_store;
  try {
    const WithoutPipeSignal for_their_threads;
    // On each host one rank tells, and rank 0.
    const WaitNotices notices(me.local_process_index == 0 ? options.notice_after : std::chrono::milliseconds());
    parts.store = join_store(me, environment, patience, notices);
    parts.transport = connect_within(patience, me, parts.store, options, notices);
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

GroupParts borrow_group(const ProcessGroupHandle& handle, const BackendOptions& options) {
  GroupParts parts;
  auto group = c10::intrusive_ptr<c10d::ProcessGroup>::reclaim_copy(handle.get());
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

LaunchEnvironment place_in(Communicator& peers) {
  LaunchEnvironment me = read_launch_environment([](const std::string&) { return std::nullopt; });
  me.launched = true;
  take_place(me, peers.rank(), peers.all_gather_bytes(me.machine, "joining a process group", std::source_location::current()));
  return me;
}

SubGroup split_group(const std::shared_ptr<Communicator>& parent, const LaunchEnvironment& me, int color,
                     const BackendOptions& options, std::source_location where) {
  const GroupParts& whole = parent->parts();
  if (!whole.store) {
    throw UsageError(
        "split_group connects the ranks of a new group through a store, but the given process group has none: construct it with "
        "one.");
  }
  const std::string key = std::to_string(color) + "/";
  const auto everyone = parent->all_gather_bytes(key + me.machine, kSplitCall, where);
  std::vector<std::string> machines;
  std::vector<int> in_run;
  int number = 0;
  for (int rank = 0; rank < parent->size(); ++rank) {
    const std::string& one = everyone[static_cast<size_t>(rank)];
    if (!one.starts_with(key)) continue;
    if (rank < parent->rank()) ++number;
    machines.push_back(one.substr(key.size()));
    in_run.push_back(whole.names.in_run(rank));
  }
  SubGroup group;
  group.me = me;
  take_place(group.me, number, machines);
  group.parts.parent = parent;
  group.parts.timeout = whole.timeout;
  group.parts.first_serves_store = whole.first_serves_store && everyone.front().starts_with(key);
  group.parts.names = RankNames(std::move(in_run));

  // What is left behind when a rank dies meanwhile has a connection to the store of its own, which others need not wait for.
  const std::string prefix = "split/" + std::to_string(parent->next_split()) + "/" + std::to_string(color);
  const auto connected = std::make_shared<GroupParts>();
  parent->run_aside(kSplitCall, where, [connected, prefix, options, store = whole.store, who = group.me] {
    connected->store = c10::make_intrusive<c10d::PrefixStore>(prefix, store->clone());
    connected->transport = connect(who, connected->store, options);
  });
  // One that was done early and left again would cut off those that are still connecting.
  parent->barrier(kSplitCall, where);
  group.parts.store = std::move(connected->store);
  group.parts.transport = std::move(connected->transport);
  return group;
}

}  // namespace accelerate::detail
