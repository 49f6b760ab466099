#include <accelerate/core/error.h>
#include <accelerate/data/sampler.h>

#include <string>

namespace accelerate {

SequentialSampler::SequentialSampler(int64_t length) : length_(length) {
  if (length < 0) throw UsageError("SequentialSampler was given a length of " + std::to_string(length) + "; expected 0 or more.");
}

Source<int64_t> SequentialSampler::indices() {
  return [next = int64_t{0}, length = length_]() mutable -> std::optional<int64_t> {
    if (next == length) return std::nullopt;
    return next++;
  };
}

}  // namespace accelerate
