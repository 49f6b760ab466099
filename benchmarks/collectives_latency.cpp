// What does a collective between two processes cost beyond the gloo call underneath it? The promise is: 5 % at most.
// Blocks of our calls alternate with blocks of bare gloo calls on the same group of two processes, and the median of the
// paired ratios counts. Started by collectives_latency, which sets beside it what the same collectives cost in Python.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <accelerate/accelerate.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

/// Even, so that each side goes first as often as the other.
constexpr int kBlocks = 120;

struct Payload {
  const char* name;
  std::vector<int64_t> shape;
  /// How many calls make a block: long ones need fewer.
  int calls;
};
const std::vector<Payload> kPayloads = {
    {"4 B", {}, 5}, {"1 KB", {256}, 5}, {"4 KB", {1024}, 5}, {"64 KB", {16384}, 5}, {"1 MB", {262144}, 2}};
constexpr int kCalls = 5;

/// One collective, done by us and by gloo alone.
struct Collective {
  std::string name;
  int calls;
  std::function<void()> ours, bare;
};

/// What a program writes that uses c10d's gloo without us. A result is the caller's as ours is: what was gathered, reduced
/// or received lies in memory of its own.
class BareGloo {
 public:
  BareGloo() : rank_(number("RANK")), size_(number("WORLD_SIZE")) {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(number("MASTER_PORT"));
    store_options.isServer = rank_ == 0;
    store_options.numWorkers = static_cast<size_t>(size_);
    auto store = c10::make_intrusive<c10d::TCPStore>(std::getenv("MASTER_ADDR"), store_options);
    // As the accelerator makes its own for the processes of one machine.
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    const auto keys = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
    gloo_ = c10::make_intrusive<c10d::ProcessGroupGloo>(keys, rank_, size_, options);
    group_ = c10::make_intrusive<c10d::ProcessGroup>(store, rank_, size_);
    group_->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, gloo_);
    group_->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  }

  /// For the accelerator, so that both sides use the same sockets and threads: two bare groups beside each other differed
  /// by more than anything that is measured here.
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  int rank() const { return rank_; }
  void barrier() { gloo_->barrier()->wait(); }

  at::Tensor gather(at::Tensor tensor) {
    if (tensor.dim() == 0) tensor = tensor.unsqueeze(0);  // gloo itself gathers nothing without dimensions
    auto shape = tensor.sizes().vec();
    shape[0] *= size_;
    at::Tensor output = at::empty(shape, tensor.options());
    gloo_->_allgather_base(output, tensor)->wait();
    return output;
  }

  at::Tensor reduce(const at::Tensor& tensor, c10d::ReduceOp::RedOpType operation = c10d::ReduceOp::SUM) {
    std::vector<at::Tensor> result = {tensor.clone()};
    c10d::AllreduceOptions options;
    options.reduceOp = operation;
    gloo_->allreduce(result, options)->wait();
    return result[0];
  }

  at::Tensor broadcast(const at::Tensor& tensor) {
    std::vector<at::Tensor> result = {rank_ == 0 ? tensor : at::empty(tensor.sizes(), tensor.options())};
    gloo_->broadcast(result)->wait();
    return result[0];
  }

  /// Bytes of any length as torch.distributed sends them: the lengths first, then as many bytes as the longest has.
  at::Tensor gather_bytes(const std::string& bytes) {
    const at::Tensor lengths = gather(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong));
    const int64_t* length = lengths.const_data_ptr<int64_t>();
    return gather(buffer_of(bytes, *std::max_element(length, length + size_)));
  }
  at::Tensor broadcast_bytes(const std::string& bytes) {
    const at::Tensor length = broadcast(at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong));
    return broadcast(buffer_of(bytes, *length.const_data_ptr<int64_t>()));
  }

 private:
  static at::Tensor buffer_of(const std::string& bytes, int64_t size) {
    at::Tensor buffer = at::empty({size}, at::kByte);
    std::memcpy(buffer.mutable_data_ptr(), bytes.data(), bytes.size());
    return buffer;
  }

  static int number(const char* variable) {
    const char* text = std::getenv(variable);
    return text ? std::atoi(text) : 0;
  }

  int rank_, size_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

std::vector<Collective> collectives(const accelerate::Accelerator& accelerator, BareGloo& bare) {
  std::vector<Collective> all;
  all.push_back({"barrier", kCalls, [&] { accelerator.wait_for_everyone(); }, [&] { bare.barrier(); }});
  for (const auto& payload : kPayloads) {
    const at::Tensor data = at::full(payload.shape, 1.0F);
    const auto add = [&](std::string call, std::function<void()> ours, std::function<void()> alone) {
      all.push_back({call + " " + payload.name, payload.calls, std::move(ours), std::move(alone)});
    };
    add(
        "gather", [&, data] { accelerator.gather(data); }, [&, data] { bare.gather(data); });
    add(
        "reduce", [&, data] { accelerator.reduce(data); }, [&, data] { bare.reduce(data); });
    add(
        "broadcast", [&, data] { accelerator.broadcast(data); }, [&, data] { bare.broadcast(data); });
  }
  // Bare gloo knows no objects, so its bytes are ready made: as many as Python's pickle of the same dictionary has.
  const std::string bytes(78, 'x');
  using accelerate::Value;
  const Value object = accelerate::StateDict{{"name", "train"}, {"epoch", 3}, {"loss", 0.25}, {"sizes", Value::List{1, 2, 3}}};
  const Value list = Value::List{object};
  const auto broadcast_list = [&, list] {
    Value objects = list;
    accelerator.broadcast_object_list(objects);
  };
  const auto gather_list = [&, list] { accelerator.gather_object(list); };
  all.push_back({"gather_object", kCalls, gather_list, [&, bytes] { bare.gather_bytes(bytes); }});
  all.push_back({"broadcast_object_list", kCalls, broadcast_list, [&, bytes] { bare.broadcast_bytes(bytes); }});
  return all;
}

double block_time(const std::function<void()>& call, int calls, BareGloo& bare) {
  bare.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - start;
  return passed.count() / calls;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(const Collective& collective, BareGloo& bare) {
  at::Tensor times = at::empty({2, kBlocks}, at::kDouble);
  auto* time = times.mutable_data_ptr<double>();
  const auto run = [&](bool ours) { return block_time(ours ? collective.ours : collective.bare, collective.calls, bare); };
  for (const bool ours : {true, false}) run(ours);  // the first of each is slower
  for (int block = 0; block < kBlocks; ++block) {
    for (const int side : {block % 2, (block + 1) % 2}) time[side * kBlocks + block] = run(side == 0);
  }
  // A collective has taken as long as it took the slower process: who broadcasts is done before the others have received.
  times = bare.reduce(times, c10d::ReduceOp::MAX);
  if (bare.rank() != 0) return;
  time = times.mutable_data_ptr<double>();
  std::vector<double> ours(time, time + kBlocks), alone(time + kBlocks, time + 2 * kBlocks), ratios;
  for (size_t block = 0; block < kBlocks; ++block) ratios.push_back(ours[block] / alone[block]);
  std::printf("%s\t%.2f\t%.2f\t%.4f\n", collective.name.c_str(), median(ours), median(alone), median(ratios));
}

}  // namespace

int main() {
  if (!std::getenv("WORLD_SIZE")) return std::fputs("Start this with benchmarks/collectives_latency.\n", stderr), 1;
  BareGloo bare;
  const accelerate::Accelerator accelerator({.cpu = true, .process_group = bare.group()});
  for (const auto& collective : collectives(accelerator, bare)) measure(collective, bare);
  // Gloo beside itself: how far the ratios of this run are to be believed.
  const at::Tensor data = at::full({256}, 1.0F);
  measure({"control 1 KB", kCalls, [&] { bare.gather(data); }, [&] { bare.gather(data); }}, bare);
  return 0;
}
