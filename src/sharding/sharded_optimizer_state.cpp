#include "sharding/sharded_optimizer_state.h"

#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <map>

#include "sharding/own_operators.h"
#include "sharding/sharded_model.h"

namespace accelerate::detail {
namespace {

/// Calls `visit` with the state of each parameter that is in a sharded unit, and its place.
template <class Visit>
void visit_sharded(const ShardedModel& model, const torch::optim::Optimizer& optimizer, StateDict& state, const Visit& visit) {
  auto& states = state.at("state").as<StateDict>();
  int64_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const std::string key = std::to_string(number++);
      const auto place = model.place_of(parameter);
      if (place && states.contains(key)) visit(states.at(key).as<StateDict>(), *place);
    }
  }
}

bool is_tensor(const Value& value) { return value.kind() == Value::Kind::tensor && value.as<at::Tensor>().defined(); }

}  // namespace

StateDict shard_optimizer_state(const ShardedModel& model, const torch::optim::Optimizer& optimizer, StateDict state) {
  const OwnOperators own;
  visit_sharded(model, optimizer, state, [&](StateDict& fields, const ShardedModel::Place& place) {
    const auto& parameter = model.units()[place.unit]->weights[place.weight].parameter;
    for (auto& [name, value] : fields) {
      if (is_tensor(value) && value.as<at::Tensor>().sizes() == parameter.sizes() && name != "step")
        value = model.part_of(value.as<at::Tensor>(), place).clone();
    }
  });
  return state;
}

StateDict gather_optimizer_state(const ShardedModel& model, const torch::optim::Optimizer& optimizer, StateDict state,
                                 bool keeps) {
  const OwnOperators own;
  // The same kind of state of all weights of a unit travels together.
  struct Part {
    Value* value;
    size_t weight;
  };
  std::map<std::pair<size_t, std::string>, std::vector<Part>> kinds;
  visit_sharded(model, optimizer, state, [&](StateDict& fields, const ShardedModel::Place& place) {
    for (auto& [name, value] : fields) {
      if (is_tensor(value) && name != "step") kinds[{place.unit, name}].push_back({&value, place.weight});
    }
  });
  for (auto& [kind, parts] : kinds) {
    const ShardedUnit& unit = *model.units()[kind.first];
    const auto options = parts.front().value->as<at::Tensor>().options().device(unit.device);
    at::Tensor mine = at::zeros({unit.layout.shard_size()}, options);
    for (const auto& part : parts) {
      const auto piece = unit.layout.piece(part.weight, model.shard_group().process_index());
      mine.narrow(0, piece.offset, piece.length).copy_(part.value->as<at::Tensor>());
    }
    const at::Tensor full = model.gather_shards(unit, mine, "save_state");
    for (const auto& part : parts) {
      const auto view = unit.view_in(full, part.weight);
      *part.value = !keeps ? Value() : view.is_cpu() ? Value(view.clone()) : Value(view.cpu());
    }
  }
  return state;
}

}  // namespace accelerate::detail
