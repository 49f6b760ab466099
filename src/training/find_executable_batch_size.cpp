#include <ATen/DeviceAccelerator.h>
#include <accelerate/core/error.h>
#include <accelerate/training/find_executable_batch_size.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>
#include <string_view>

namespace accelerate::detail {
namespace {

bool tells_of_lack_of_memory(std::string_view message) {
  static constexpr std::array<std::string_view, 4> kTexts = {
      " out of memory.",
      "MPS backend out of memory",
      "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
      "DefaultCPUAllocator: can't allocate memory",
  };
  return std::any_of(kTexts.begin(), kTexts.end(), [&](auto text) { return message.find(text) != std::string_view::npos; });
}

/// What an exception was made of, where it was: a loader adds the position of a sample to what its dataset threw.
std::exception_ptr nested_in(const std::exception& error) {
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  return nested ? nested->nested_ptr() : nullptr;
}

}  // namespace

bool is_out_of_memory(const std::exception_ptr& error) {
  if (!error) return false;
  try {
    std::rethrow_exception(error);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::bad_alloc&) {
    return true;
  } catch (const c10::Error& told) {
    return tells_of_lack_of_memory(told.what_without_backtrace());
  } catch (const DistributedError&) {
    return false;
  } catch (const std::runtime_error& told) {
    return tells_of_lack_of_memory(told.what()) || is_out_of_memory(nested_in(told));
  } catch (...) {
    return false;
  }
}

void clear_device_cache() {
  const auto device = at::getAccelerator();
  if (!device) return;
  auto* allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(*device));
  if (allocator && allocator->initialized()) allocator->emptyCache();
}

int64_t BatchSizeSearch::batch_size() const {
  if (last() > 0) return last();
  throw UsageError(
      "No executable batch size found, reached zero: a single sample does not fit in memory. Make the model or its inputs "
      "smaller, or spread the model over more devices.");
}

void BatchSizeSearch::reduce() {
  clear_device_cache();
  options_.starting_batch_size = options_.reduce_batch_size_fn
                                     ? options_.reduce_batch_size_fn()
                                     : static_cast<int64_t>(static_cast<double>(options_.starting_batch_size) * 0.9);
}

}  // namespace accelerate::detail
