#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>

namespace accelerate {

/// How a batch size is searched.
struct ExecutableBatchSizeOptions {
  int64_t starting_batch_size = 128;
  /// The next size to try after running out of memory. Default: nine tenths, rounded down.
  std::function<int64_t()> reduce_batch_size_fn = {};
};

namespace detail {

/// The size to try, whatever it is tried with.
class BatchSizeSearch {
 public:
  explicit BatchSizeSearch(ExecutableBatchSizeOptions options) : options_(std::move(options)) {}
  /// UsageError when there is none left.
  int64_t batch_size() const;
  int64_t last() const { return options_.starting_batch_size; }
  /// Empties the caches of allocators, then continues with the next size.
  void reduce();

 private:
  ExecutableBatchSizeOptions options_;
};

/// Whether this exception says that the memory of a device or of this host was not enough. Not for what a peer reports: the
/// process group is unusable after that.
bool is_out_of_memory(const std::exception_ptr& error);

/// Returns cached memory of the accelerator's caching allocator to the device.
void clear_device_cache();

}  // namespace detail

/// A function that finds its own batch size. The size that worked is where the next call begins.
template <class Function>
class ExecutableBatchSize {
 public:
  ExecutableBatchSize(Function function, ExecutableBatchSizeOptions options)
      : function_(std::move(function)), search_(std::move(options)) {}

  /// Calls the function with a batch size and `arguments`, again with smaller ones as long as it runs out of memory. UsageError
  /// when no size is left; any other exception passes through. Arguments are lvalues to the function: a call may be repeated.
  template <class... Arguments>
  requires std::invocable<Function&, int64_t, Arguments&...>
  decltype(auto) operator()(Arguments&&... arguments) {
    detail::clear_device_cache();
    while (true) {
      const int64_t batch_size = search_.batch_size();
      try {
        return std::invoke(function_, batch_size, arguments...);
      } catch (...) {
        if (!detail::is_out_of_memory(std::current_exception())) throw;
      }
      // After the exception is gone, and with it what it may hold.
      search_.reduce();
    }
  }

  /// The size of the last call that worked, or the one to try next.
  int64_t batch_size() const { return search_.last(); }

 private:
  Function function_;
  detail::BatchSizeSearch search_;
};

/// A function that calls `function(batch_size, arguments...)`, and with smaller batch sizes as long as it runs out of memory.
/// What depends on the batch size, loaders above all, is made within `function`.
///
///   auto train = accelerate::find_executable_batch_size([&](int64_t batch_size) { ... }, {.starting_batch_size = 256});
///   train();
template <class Function>
ExecutableBatchSize<Function> find_executable_batch_size(Function function, ExecutableBatchSizeOptions options = {}) {
  return {std::move(function), std::move(options)};
}

}  // namespace accelerate
