#include "residency/managed_storage.h"

#include <accelerate/core/error.h>

#include <cstring>
#include <utility>

namespace accelerate::detail {
namespace {

using Owner = std::shared_ptr<StorageRecord>;

/// A storage owns its record through its data pointer, which it frees when it ends.
void drop_record(void* owner) { delete static_cast<Owner*>(owner); }

/// LibTorch 2.11 can set such a message and cannot take it back. There an absent weight is a null pointer, which kernels refuse
/// less politely.
template <class Storage>
void set_absent_message(Storage& storage, std::optional<std::string> message) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    if (message) {
      storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
    } else {
      storage.clear_data_ptr_access_error_msg_();
    }
  }
}

void set_pointer(c10::StorageImpl& storage, void* bytes) {
  c10::DataPtr& old = storage._mutable_data_ptr_no_checks();
  const c10::Device device = old.device();
  void* owner = old.release_context();
  storage.set_data_ptr_noswap(c10::DataPtr(bytes, owner, &drop_record, device));
}

std::string absent_message(const std::string& name, Absence absence) {
  return "The weight " + name + (absence == Absence::sharded ? " is sharded over the ranks" : " is offloaded") +
         " and not in memory. Operators page it in automatically; to use a pointer to its data, keep "
         "accelerate::materialized(module) alive.";
}

}  // namespace

c10::DataPtr StorageRecord::allocate(size_t) {
  throw UsageError(absence == Absence::sharded
                       ? "A sharded weight cannot be resized."
                       : "An offloaded weight cannot be resized. Load it into memory first, with a copy or module->to(device).");
}

void StorageRecord::copy_data(void* to, const void* from, size_t count) const { std::memcpy(to, from, count); }

StorageRecord* record_of(const at::TensorBase& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  return dynamic_cast<StorageRecord*>(tensor.storage().unsafeGetStorageImpl()->allocator());
}

void manage(c10::StorageImpl& storage, std::shared_ptr<StorageRecord> record, c10::Device device, const std::string& name) {
  StorageRecord* allocator = record.get();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, new Owner(std::move(record)), &drop_record, device));
  storage.set_allocator(allocator);
  storage.set_resizable(false);
  set_absent_message(storage, absent_message(name, allocator->absence));
}

void show_bytes(c10::StorageImpl& storage, void* bytes) {
  set_pointer(storage, bytes);
  set_absent_message(storage, std::nullopt);
}

void hide_bytes(c10::StorageImpl& storage, const std::string& name) {
  set_pointer(storage, nullptr);
  set_absent_message(storage, absent_message(name, static_cast<StorageRecord*>(storage.allocator())->absence));
}

void stop_managing(c10::StorageImpl& storage, c10::DataPtr bytes, c10::Allocator* allocator) {
  storage.set_allocator(allocator);
  set_absent_message(storage, std::nullopt);
  storage.set_data_ptr_noswap(std::move(bytes));
}

}  // namespace accelerate::detail
