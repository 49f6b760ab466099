#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <vector>

#include "residency/slots.h"
#include "sharding/flat_layout.h"
#include "sharding/unit_plan.h"

namespace accelerate::detail {

/// A parameter of a sharded unit.
struct ShardedWeight {
  std::string name;
  /// The module's own: of its full shape, with bytes only while they are gathered. One of the same shape when the sharded model
  /// has ended: its storage keeps the unit alive, so the unit must not keep it.
  at::Tensor parameter;
  /// This rank's part of it, a view of the unit's shard: what an optimizer steps.
  at::Tensor piece;
  /// The parameter's, as long as there is one.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage = parameter.storage().getWeakStorageImpl();
};

/// Weights that are gathered and resharded together, and this rank's shard of them.
struct ShardedUnit {
  std::string name;
  FlatLayout layout;
  /// On the device of the run, or in host memory where it is offloaded; in the dtype that the parameters had.
  at::Tensor shard = {};
  std::vector<ShardedWeight> weights = {};
  /// What weights are gathered in, and where.
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::Device device = c10::kCPU;

  /// As call logs tell it, which have room for 23 characters: "for blocks.1".
  std::string label() const {
    constexpr size_t kMost = 19;
    return "for " + (name.size() > kMost ? ".." + name.substr(name.size() - kMost + 2) : name);
  }
  /// The sharded model has ended. Whoever has its parameters still can use them.
  void release_parameters();
  int64_t full_bytes() const { return layout.total() * static_cast<int64_t>(c10::elementSize(dtype)); }
  bool converts() const { return shard.scalar_type() != dtype; }
  /// Whether the shard waits in host memory for a device that computes with it.
  bool is_offloaded() const { return shard.device() != device; }
  /// A view of a weight in a flat vector of the unit, laid out as the parameter is.
  at::Tensor view_in(const at::Tensor& flat, size_t weight) const {
    const auto& parameter = weights[weight].parameter;
    return flat.as_strided(parameter.sizes(), parameter.strides(), layout.offset(weight));
  }
};

/// How memory for whole units is had on a device.
Slots::Allocate slots_on(c10::Device device);

/// The elements of a dense tensor in the order of its memory.
at::Tensor in_memory_order(const at::Tensor& tensor);

}  // namespace accelerate::detail
