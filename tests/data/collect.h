#pragma once

#include <accelerate/data/sampler.h>

#include <memory>

/// Short ways to write what samplers give down.
namespace collected {

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
