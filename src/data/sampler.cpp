#include <accelerate/core/error.h>
#include <accelerate/data/sampler.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace accelerate {

Source<Indices> Sampler::runs(int64_t length) {
  // A batch may be announced as far longer than there are samples: "all of them".
  const auto expected = static_cast<size_t>(std::clamp<int64_t>(size().value_or(0), 0, length));
  return [next = indices(), expected, length = static_cast<size_t>(length), ended = false]() mutable -> std::optional<Indices> {
    if (ended) return std::nullopt;
    Indices run;
    run.reserve(expected);
    while (run.size() < length) {
      const std::optional<int64_t> index = next();
      ended = !index;
      if (ended) return run.empty() ? std::nullopt : std::optional(std::move(run));
      run.push_back(*index);
    }
    return run;
  };
}

namespace {

/// A pass to a negative end would never come to it.
int64_t sequential_length(int64_t length) {
  if (length < 0) throw UsageError("SequentialSampler was given a length of " + std::to_string(length) + "; expected 0 or more.");
  return length;
}

}  // namespace

SequentialSampler::SequentialSampler(int64_t length) : length_([length] { return length; }) { sequential_length(length); }

Source<int64_t> SequentialSampler::indices() {
  return [next = int64_t{0}, length = sequential_length(length_())]() mutable -> std::optional<int64_t> {
    if (next == length) return std::nullopt;
    return next++;
  };
}

Source<Indices> SequentialSampler::runs(int64_t length) {
  return [next = int64_t{0}, end = sequential_length(length_()), length]() mutable -> std::optional<Indices> {
    if (next == end) return std::nullopt;
    Indices run(static_cast<size_t>(std::min(length, end - next)));
    std::iota(run.begin(), run.end(), next);
    next += std::ssize(run);
    return run;
  };
}

}  // namespace accelerate
