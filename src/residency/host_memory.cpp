#include "residency/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/in_parallel.h"
#include "residency/page_locking.h"

namespace accelerate::residency {
namespace {

constexpr uint64_t kPage = 4096;  // or a part of one
constexpr uint64_t kTouchedAtOnce = uint64_t{16} << 20;
constexpr uint64_t kWeightAlignment = 256;

uint64_t rounded(uint64_t bytes) { return (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment; }

class HomeInMemory final : public WeightHome {
 public:
  explicit HomeInMemory(at::Tensor bytes) : WeightHome(bytes.nbytes()), bytes_(std::move(bytes)), pinned_(bytes_.is_pinned()) {}

  std::string where() const override { return "host memory"; }
  void read(void* to, uint64_t size, uint64_t offset) const override {
    std::memcpy(to, bytes_.const_data_ptr<uint8_t>() + offset, size);
  }
  const at::Tensor* fetchable() const override { return pinned_ ? &bytes_ : nullptr; }
  bool writable() const override { return true; }
  void write(const void* from) override { std::memcpy(bytes_.mutable_data_ptr<uint8_t>(), from, size()); }

 private:
  at::Tensor bytes_;
  bool pinned_;
};

}  // namespace

std::shared_ptr<WeightHome> home_in_memory(at::Tensor bytes) { return std::make_shared<HomeInMemory>(std::move(bytes)); }

at::Tensor bytes_of(const at::Tensor& tensor) {
  const int64_t size = static_cast<int64_t>(tensor.nbytes());
  const int64_t offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false)).set_(tensor.storage(), offset, {size}, {1});
}

at::Tensor pinned_memory(uint64_t bytes) {
  auto* const memory = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // fewer pages to touch and to lock
  in_parallel((bytes + kTouchedAtOnce - 1) / kTouchedAtOnce, [&](size_t piece) {
    const uint64_t end = std::min(bytes, (piece + 1) * kTouchedAtOnce);
    for (uint64_t at = piece * kTouchedAtOnce; at < end; at += kPage) memory[at] = 0;
  });
  const bool locked = lock_pages(memory, bytes);
  const auto free = [locked, bytes](void* whole) {
    if (locked) unlock_pages(whole);
    munmap(whole, bytes);
  };
  return at::from_blob(memory, {static_cast<int64_t>(bytes)}, free, at::kByte);
}

void PinnedMemory::expect(uint64_t bytes) { expected_ += rounded(bytes); }

at::Tensor PinnedMemory::take(uint64_t bytes) {
  const uint64_t size = rounded(bytes);
  if (!memory_.defined() || memory_.nbytes() - used_ < size) {
    memory_ = pinned_memory(std::max(size, expected_));
    used_ = 0;
  }
  expected_ -= std::min(expected_, size);
  return memory_.narrow(0, static_cast<int64_t>(std::exchange(used_, used_ + size)), static_cast<int64_t>(bytes));
}

}  // namespace accelerate::residency
