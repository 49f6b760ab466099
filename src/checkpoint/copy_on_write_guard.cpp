#include "checkpoint/copy_on_write_guard.h"

#include <c10/core/StorageImpl.h>
#include <unistd.h>

#include <atomic>

namespace accelerate::detail {

/// What a storage owned, and now owns together with those who read it. It stays like that: to give it back while an operator uses
/// the storage would be a race, and to read it again costs nothing.
struct CopyOnWriteGuard::Memory {
  using Owner = std::shared_ptr<Memory>;

  c10::DataPtr bytes;
  pid_t process = 0;  // whose threads read
  std::atomic<int> readings = 0;

  static void drop(void* owner) { delete static_cast<Owner*>(owner); }
  /// Null when the storage's memory was never read late, or is another one by now.
  static Owner* owner_in(const c10::DataPtr& memory) { return memory.cast_context<Owner>(&drop); }

  /// The memory of a storage, made to be shared.
  static Owner of(c10::StorageImpl& storage) {
    c10::DataPtr& own = storage._mutable_data_ptr_no_checks();
    if (const Owner* shared = owner_in(own)) return *shared;
    auto memory = std::make_shared<Memory>();
    auto owner = std::make_unique<Owner>(memory);
    void* const bytes = own.get();
    const c10::Device device = own.device();
    memory->bytes = std::move(own);
    storage.set_data_ptr_noswap(c10::DataPtr(bytes, owner.release(), &drop, device));
    return memory;
  }

  /// LibTorch calls it before it gives away a pointer to write by.
  static void await_readings(c10::StorageImpl* storage) {
    const Owner* shared = owner_in(storage->_mutable_data_ptr_no_checks());
    if (!shared) return;
    const Owner memory = *shared;
    // The memory of a forked process is its own, and the threads that read are not there.
    if (memory->process != ::getpid()) return;
    for (int readings = memory->readings; readings != 0; readings = memory->readings) memory->readings.wait(readings);
  }
};

namespace {

template <class Storage>
concept TellsOfWrites = requires(Storage& storage) {
  storage.set_materializer(nullptr);
  storage.has_materializer();
};

template <class Storage>
bool tells_nobody_else(const Storage& storage) {
  if constexpr (TellsOfWrites<Storage>) return !storage.has_materializer();
  return false;
}

/// Lasts for one write, or one reader who asks as if to write.
template <class Storage>
void before_writing(Storage& storage, void (*call)(Storage*)) {
  if constexpr (TellsOfWrites<Storage>) {
    if (!storage.has_materializer()) storage.set_materializer(call);
  }
}

}  // namespace

bool CopyOnWriteGuard::is_possible(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return false;
  const c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const c10::DataPtr& memory = storage.data_ptr();
  // Nobody else shares memory that is shared by us: a storage is copied on write only where it owns its bytes alone.
  return Memory::owner_in(memory) != nullptr || (memory.get_context() != nullptr && tells_nobody_else(storage));
}

CopyOnWriteGuard::CopyOnWriteGuard(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  memory_ = Memory::of(storage);
  if (memory_->process != ::getpid()) {  // readings of before a fork
    memory_->process = ::getpid();
    memory_->readings = 0;
  }
  ++memory_->readings;
  before_writing(storage, &Memory::await_readings);
}

void CopyOnWriteGuard::end() noexcept {
  const auto memory = std::exchange(memory_, nullptr);
  if (memory && --memory->readings == 0) memory->readings.notify_all();
}

}  // namespace accelerate::detail
