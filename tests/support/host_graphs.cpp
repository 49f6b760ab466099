#include "support/host_graphs.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <unordered_set>

#include "residency/interception.h"

namespace {

using accelerate::detail::DeviceGraph;
using accelerate::detail::GraphDevice;

/// Below autograd and above the kernels; nobody else uses it.
constexpr auto kKey = c10::DispatchKey::Fake;

void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (value.isTensorList()) {
    for (const auto& tensor : value.toTensorVector()) visit(tensor);
  }
  if (value.isOptionalTensorList()) {
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor && tensor->defined()) visit(*tensor);
    }
  }
}

/// The bytes that a weight has now, which a graph of a device has the address of: later they are paged out.
at::Tensor bytes_of(const at::Tensor& tensor) {
  if (!accelerate::detail::has_key(tensor)) return tensor;
  const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(), tensor.options());
}

struct Operator {
  c10::OperatorHandle handle;
  std::vector<c10::IValue> arguments, results;
};

class HostGraph : public DeviceGraph {
 public:
  void replay() override {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const auto& each : operators_) {
      torch::jit::Stack stack = each.arguments;
      each.handle.callBoxed(stack);
      for (size_t i = 0; i < stack.size(); ++i) put(stack[i], each.results[i]);
    }
  }

  void record(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    TORCH_CHECK(op.operator_name().name != "aten::_local_scalar_dense",
                "HOST error: not permitted while it is recorded\nand more");
    const size_t first = stack->size() - schema.arguments().size();
    std::vector<c10::IValue> arguments(stack->begin() + static_cast<ptrdiff_t>(first), stack->end());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      // Batch norms do not say that they write to their statistics.
      const bool is_written = (alias != nullptr && alias->isWrite()) || op.operator_name().name == "aten::native_batch_norm";
      if (is_written) for_each_tensor(arguments[i], [this](const at::Tensor& tensor) { save(tensor); });
    }
    // Views of weights are made without bytes.
    const bool makes_view = std::any_of(schema.returns().begin(), schema.returns().end(), [](const c10::Argument& result) {
      return result.alias_info() && !result.alias_info()->isWrite();
    });
    auto recorded_arguments = arguments;
    if (!makes_view) {
      for (auto& argument : recorded_arguments) argument = accelerate::detail::map_tensors(argument, bytes_of);
    }
    op.callBoxed(stack);
    for (const auto& result : *stack) {
      for_each_tensor(result, [&](const at::Tensor& tensor) {
        bool is_given = false;
        for (const auto& argument : arguments)
          for_each_tensor(argument, [&](const at::Tensor& given) { is_given = is_given || given.is_alias_of(tensor); });
        if (!is_given) made_.insert(tensor.storage().unsafeGetStorageImpl());
      });
    }
    // Memory that nobody has written to is no work for a device.
    const auto& name = op.operator_name().name;
    if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) return;
    operators_.push_back({op, std::move(recorded_arguments), {stack->begin() + static_cast<ptrdiff_t>(first), stack->end()}});
  }

  /// What was there before has the values it had.
  void undo() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::DisableRecordFunctionGuard unseen;
    for (auto& [tensor, values] : saved_) tensor.copy_(values);
    saved_.clear();
  }

 private:
  void save(const at::Tensor& tensor) {
    if (accelerate::detail::has_key(tensor)) return;  // a batch norm reads its weight
    auto* storage = tensor.storage().unsafeGetStorageImpl();
    if (made_.contains(storage) || !known_.insert(storage).second) return;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor whole = at::empty({0}, tensor.options());
    whole.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes() / tensor.itemsize())}, {1});
    saved_.emplace_back(whole, whole.clone());
  }

  static void put(const c10::IValue& values, const c10::IValue& where) {
    std::vector<at::Tensor> from, to;
    for_each_tensor(values, [&](const at::Tensor& tensor) { from.push_back(tensor); });
    for_each_tensor(where, [&](const at::Tensor& tensor) { to.push_back(tensor); });
    for (size_t i = 0; i < from.size(); ++i) {
      if (!from[i].is_alias_of(to[i])) to[i].copy_(from[i]);
    }
  }

  std::vector<Operator> operators_;
  std::unordered_set<const void*> made_, known_;
  std::vector<std::pair<at::Tensor, at::Tensor>> saved_;
};

thread_local HostGraph* recorded = nullptr;

void record_operator(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  recorded->record(op, stack);
}

class HostGraphs : public GraphDevice {
 public:
  std::unique_ptr<DeviceGraph> record(const std::function<void()>& body) override {
    static torch::Library library = [] {
      torch::Library made(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
      made.fallback(torch::CppFunction::makeFromBoxedFunction<&record_operator>());
      return made;
    }();
    auto graph = std::make_unique<HostGraph>();
    recorded = graph.get();
    auto generator = at::detail::getDefaultCPUGenerator();
    const auto random = generator.get_state();
    struct Ending {
      HostGraph& graph;
      at::Generator& generator;
      const at::Tensor& random;
      ~Ending() {
        graph.undo();
        generator.set_state(random);
      }
    };
    {
      const Ending ending{*graph, generator, random};
      at::empty({1});  // as LibTorch, which makes tensors of its own when it begins a recording
      const c10::impl::IncludeDispatchKeyGuard intercepted(kKey);
      body();
    }
    return graph;
  }
};

}  // namespace

std::unique_ptr<GraphDevice> make_host_graphs(c10::Device) { return std::make_unique<HostGraphs>(); }
