#pragma once

#include <ATen/core/TensorBody.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <string>

/// Storages whose bytes come and go. What the engine knows of a weight belongs to its storage, and goes with it: no table of all
/// weights is needed, and none can be out of date.
namespace accelerate::detail {

class WeightPager;

/// Why the bytes of a managed storage may be absent: what messages about it say.
enum class Absence { offloaded, sharded };

/// What is attached to a storage: whose it is. A storage's allocator is never replaced while its bytes are, so that threads can
/// look this up at any time.
class StorageRecord final : public c10::Allocator {
 public:
  StorageRecord(std::shared_ptr<WeightPager> owner, int unit_number, int weight_number, Absence why = Absence::offloaded)
      : pager(std::move(owner)), unit(unit_number), weight(weight_number), absence(why) {}

  const std::shared_ptr<WeightPager> pager;
  /// Of the pager, and which of the unit's weights it is.
  const int unit, weight;
  const Absence absence;

  /// A storage asks for memory when it is resized, which a managed one cannot be: UsageError.
  c10::DataPtr allocate(size_t bytes) override;
  void copy_data(void* to, const void* from, size_t count) const override;
};

/// The record of a tensor's storage, or null.
StorageRecord* record_of(const at::TensorBase& tensor);

/// Makes `storage` a managed one without bytes. What it held is dropped.
void manage(c10::StorageImpl& storage, std::shared_ptr<StorageRecord> record, c10::Device device, const std::string& name);
/// Gives a managed storage its bytes, which somebody else owns.
void show_bytes(c10::StorageImpl& storage, void* bytes);
/// Evicts them: reading them without an operator is an error that names the weight.
void hide_bytes(c10::StorageImpl& storage, const std::string& name);
/// Makes it a storage like any other, with its own bytes.
void stop_managing(c10::StorageImpl& storage, c10::DataPtr bytes, c10::Allocator* allocator);

}  // namespace accelerate::detail
