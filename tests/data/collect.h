#pragma once

#include <ATen/core/TensorBody.h>
#include <accelerate/data/sampler.h>

#include <iterator>
#include <list>
#include <memory>
#include <numeric>
#include <stdexcept>

/// Short ways to write down what samplers and loaders give.
namespace collected {

using Lists = std::vector<std::vector<int64_t>>;

/// A dataset whose sample i is i, by position or one after the other.
inline std::vector<int64_t> up_to(int64_t n) {
  std::vector<int64_t> numbers(static_cast<size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}
inline std::list<int64_t> stream_up_to(int64_t n) {
  const auto numbers = up_to(n);
  return {numbers.begin(), numbers.end()};
}

/// Numbers without an end, or with an error for one.
struct NumberStream {
  struct Iterator {
    using value_type = int64_t;
    using difference_type = std::ptrdiff_t;
    int64_t at = 0, breaks_at = -1;
    int64_t operator*() const { return at; }
    Iterator& operator++() {
      if (++at == breaks_at) throw std::runtime_error("the file ends here");
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return false; }
  };
  int64_t breaks_at = -1;
  Iterator begin() const { return {0, breaks_at}; }
  std::default_sentinel_t end() const { return {}; }
};

inline std::vector<int64_t> numbers_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).cpu().contiguous().view(-1);
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}
/// The batches of a pass over a loader of tensors.
template <class Loader>
Lists batches_of(const Loader& loader) {
  Lists batches;
  for (auto& batch : loader) batches.push_back(numbers_of(batch));
  return batches;
}
/// The same without saying where one ends.
template <class Loader>
std::vector<int64_t> samples_of(const Loader& loader) {
  std::vector<int64_t> samples;
  for (const auto& batch : batches_of(loader)) samples.insert(samples.end(), batch.begin(), batch.end());
  return samples;
}

/// All that is left of a source.
template <class T>
std::vector<T> all(accelerate::Source<T> source) {
  std::vector<T> everything;
  while (std::optional<T> next = source()) everything.push_back(std::move(*next));
  return everything;
}

inline accelerate::Indices pass_of(accelerate::Sampler& sampler) { return all<int64_t>(sampler.indices()); }
inline std::vector<accelerate::Indices> pass_of(accelerate::BatchSampler& batches) {
  return all<accelerate::Indices>(batches.batches());
}

/// Batches that were written down, whatever their lengths.
class GivenBatches : public accelerate::BatchSampler {
 public:
  explicit GivenBatches(std::vector<accelerate::Indices> given, bool drop = false, std::optional<int64_t> length = {})
      : given_(std::move(given)), drop_last_(drop), batch_size_(length) {}
  accelerate::Source<accelerate::Indices> batches() override {
    return [given = given_, i = size_t{0}]() mutable -> std::optional<accelerate::Indices> {
      return i < given.size() ? std::optional(given[i++]) : std::nullopt;
    };
  }
  std::optional<int64_t> size() const override { return static_cast<int64_t>(given_.size()); }
  std::optional<int64_t> batch_size() const override { return batch_size_; }
  bool drop_last() const override { return drop_last_; }

 private:
  std::vector<accelerate::Indices> given_;
  bool drop_last_;
  std::optional<int64_t> batch_size_;
};

}  // namespace collected
