#include "residency/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StorageImpl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "core/escaped.h"
#include "core/file.h"
#include "core/in_parallel.h"
#include "residency/page_locking.h"

namespace accelerate::detail {
namespace {

constexpr uint64_t kPage = 4096;  // or a part of one
constexpr uint64_t kTouchedAtOnce = uint64_t{16} << 20;
constexpr uint64_t kWeightAlignment = 256;

uint64_t rounded(uint64_t bytes) { return (bytes + kWeightAlignment - 1) / kWeightAlignment * kWeightAlignment; }

/// A file without a name, so that nothing is left of it, however the process ends. -1 and errno when there can be none.
int open_nameless_file(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (descriptor >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return descriptor;
  // A file system that makes none: it has a name for a moment.
  std::string name = folder + "/.accelerate-offload-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

/// Maps such a file, whose blocks are allocated: a write to a page that finds the disk full would end the process.
void* map_file(uint64_t bytes, const std::string& folder) {
  const auto fail = [&](const std::string& what, int reason) {
    throw FileAccessError("Cannot " + what + " in the folder " + escaped(folder) + ": " + std::strerror(reason) + ".");
  };
  const int descriptor = open_nameless_file(folder);
  if (descriptor < 0) fail("create a file", errno);
  const int reason = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  void* const start = reason ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const int problem = reason ? reason : errno;
  close(descriptor);
  if (start == MAP_FAILED) fail("offload " + std::to_string(bytes) + " bytes", problem);
  return start;
}

/// Pages that are unmapped with it: anonymous ones, or those of a file in a folder.
class Mapping {
 public:
  explicit Mapping(uint64_t bytes)
      : start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), bytes_(bytes) {
    if (start_ == MAP_FAILED) throw std::bad_alloc();
    madvise(start_, bytes_, MADV_HUGEPAGE);  // fewer pages to touch and to lock
  }
  Mapping(uint64_t bytes, const std::string& folder) : start_(map_file(bytes, folder)), bytes_(bytes), folder_(folder) {}
  ~Mapping() {
    if (locked_) unlock_pages(start_);
    munmap(start_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* start() const { return static_cast<char*>(start_); }
  /// Empty for anonymous pages.
  const std::string& folder() const { return folder_; }
  void lock() { locked_ = lock_pages(start_, bytes_); }
  /// Keeps its pages as far as they are needed, perhaps at another address.
  void resize(uint64_t bytes) {
    void* const start = mremap(start_, bytes_, bytes, MREMAP_MAYMOVE);
    if (start == MAP_FAILED) throw std::bad_alloc();
    start_ = start;
    bytes_ = bytes;
  }

  /// Bytes on a mapping, which goes with them.
  static at::Tensor tensor_of(std::unique_ptr<Mapping> mapping) {
    const auto size = static_cast<int64_t>(mapping->bytes_);
    char* const start = mapping->start();
    c10::DataPtr owner(start, mapping.release(), &unmap, c10::kCPU);
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size, std::move(owner), nullptr,
                                                         /*resizable=*/false);
    return at::empty({0}, at::kByte).set_(c10::Storage(std::move(storage)), 0, {size}, {1});
  }
  /// The mapping that a tensor is on, or null.
  static const Mapping* of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return nullptr;
    const c10::DataPtr& owner = tensor.storage().data_ptr();
    return owner.get_deleter() == &unmap ? static_cast<const Mapping*>(owner.get_context()) : nullptr;
  }
  /// The mapping of a tensor that nobody else uses; null when it is on other memory.
  static std::unique_ptr<Mapping> take_from(at::Tensor tensor) {
    if (!of(tensor)) return nullptr;
    c10::DataPtr owner = tensor.storage().set_data_ptr(c10::DataPtr(nullptr, c10::kCPU));
    return std::unique_ptr<Mapping>(static_cast<Mapping*>(owner.release_context()));
  }

 private:
  static void unmap(void* mapping) { delete static_cast<Mapping*>(mapping); }

  void* start_;
  uint64_t bytes_;
  bool locked_ = false;
  std::string folder_ = {};
};

class HomeInMemory final : public WeightStore {
 public:
  explicit HomeInMemory(at::Tensor bytes) : WeightStore(bytes.nbytes()), bytes_(std::move(bytes)), pinned_(bytes_.is_pinned()) {}

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

std::shared_ptr<WeightStore> store_in_memory(at::Tensor bytes) { return std::make_shared<HomeInMemory>(std::move(bytes)); }

at::Tensor bytes_of(const at::Tensor& tensor) {
  const int64_t size = static_cast<int64_t>(tensor.nbytes());
  const int64_t offset = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false)).set_(tensor.storage(), offset, {size}, {1});
}

at::Tensor mapped_memory(uint64_t bytes, at::Tensor scrap) {
  auto mapping = Mapping::take_from(std::move(scrap));
  if (mapping) {
    mapping->resize(bytes);
  } else {
    mapping = std::make_unique<Mapping>(bytes);
  }
  return Mapping::tensor_of(std::move(mapping));
}

at::Tensor host_slot(uint64_t bytes, at::Tensor scrap) {
  constexpr uint64_t kMappedFrom = uint64_t{128} << 10;
  return bytes < kMappedFrom ? at::empty({static_cast<int64_t>(bytes)}, at::kByte) : mapped_memory(bytes, std::move(scrap));
}

at::Tensor pinned_memory(uint64_t bytes) {
  if (bytes == 0) return at::empty({0}, at::kByte);
  auto mapping = std::make_unique<Mapping>(bytes);
  in_parallel((bytes + kTouchedAtOnce - 1) / kTouchedAtOnce, [&](size_t piece) {
    const uint64_t end = std::min(bytes, (piece + 1) * kTouchedAtOnce);
    for (uint64_t at = piece * kTouchedAtOnce; at < end; at += kPage) mapping->start()[at] = 0;
  });
  mapping->lock();
  return Mapping::tensor_of(std::move(mapping));
}

at::Tensor file_memory(uint64_t bytes, const std::string& folder) {
  return bytes == 0 ? at::empty({0}, at::kByte) : Mapping::tensor_of(std::make_unique<Mapping>(bytes, folder));
}

bool is_in_file(const at::Tensor& tensor) {
  const auto* mapping = Mapping::of(tensor);
  return mapping && !mapping->folder().empty();
}

namespace {

at::Tensor zeros_in_folder_of(const at::Tensor& neighbour, const at::Tensor& like) {
  return file_memory(like.nbytes(), Mapping::of(neighbour)->folder()).view(like.scalar_type()).view(like.sizes());
}

}  // namespace

at::Tensor zeros_beside(const at::Tensor& tensor) {
  return is_in_file(tensor) ? zeros_in_folder_of(tensor, tensor) : at::zeros_like(tensor);
}

void keep_beside(at::Tensor& state, const at::Tensor& tensor) {
  if (is_in_file(tensor) && !is_in_file(state)) state = zeros_in_folder_of(tensor, state).copy_(state);
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

}  // namespace accelerate::detail
