#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <accelerate/core/error.h>
#include <accelerate/data/collate.h>
#include <c10/util/Exception.h>

#include "distributed/tensor_text.h"

namespace accelerate::detail {
namespace {

std::string which_sample(size_t position, const CollatePlace& place) {
  if (position < place.indices.size()) return "sample " + std::to_string(place.indices[position]);
  return "sample " + std::to_string(position) + " of the batch";
}

std::string whereabouts(const CollatePlace& place) { return place.path.empty() ? "" : " at " + place.path; }

constexpr const char* kAdvice = " Pad them to the same shape in the dataset, or give the DataLoader a collate function.";

void expect_alike(const std::vector<Leaves>& samples, const CollatePlace& place) {
  const Leaves& first = samples.front();
  for (size_t i = 1; i < samples.size(); ++i) {
    if (samples[i].outline != first.outline) {
      throw UsageError(which_sample(0, place) + " and " + which_sample(i, place) +
                       " cannot be collated into a batch: they are nested" + whereabouts(place) + " as " + first.outline +
                       " and " + samples[i].outline + " (t is a tensor)." + kAdvice);
    }
    for (size_t t = 0; t < first.tensors.size(); ++t) {
      const at::Tensor &ours = *first.tensors[t], &theirs = *samples[i].tensors[t];
      if (ours.defined() == theirs.defined() && (!ours.defined() || ours.sizes() == theirs.sizes())) continue;
      throw UsageError(which_sample(0, place) + " and " + which_sample(i, place) + " cannot be collated into a batch: tensor " +
                       std::to_string(t + 1) + " of " + std::to_string(first.tensors.size()) + whereabouts(place) + " is " +
                       describe(ours) + " in one and " + describe(theirs) + " in the other." + kAdvice);
    }
  }
}

template <class To, class From>
at::Tensor filled(const std::vector<From>& numbers, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, dtype);
  std::copy(numbers.begin(), numbers.end(), tensor.data_ptr<To>());
  return tensor;
}

}  // namespace

void stack(const std::vector<Leaves>& samples, const CollatePlace& place) {
  expect_alike(samples, place);
  std::vector<at::Tensor> column(samples.size());
  for (size_t t = 0; t < samples.front().tensors.size(); ++t) {
    at::Tensor& joined = *samples.front().tensors[t];
    if (!joined.defined()) continue;
    for (size_t i = 0; i < samples.size(); ++i) column[i] = *samples[i].tensors[t];
    try {
      joined = at::stack(column);
    } catch (const c10::Error& error) {
      throw UsageError(which_sample(0, place) + " and those after it cannot be collated into a batch" + whereabouts(place) +
                       ": " + error.what_without_backtrace());
    }
  }
}

at::Tensor tensor_of(const std::vector<int64_t>& numbers) { return filled<int64_t>(numbers, at::kLong); }

at::Tensor tensor_of(const std::vector<double>& numbers, bool single_precision) {
  return single_precision ? filled<float>(numbers, at::kFloat) : filled<double>(numbers, at::kDouble);
}

at::Tensor tensor_of_truths(const std::vector<int64_t>& truths) { return filled<bool>(truths, at::kBool); }

void no_samples_to_join() {
  throw UsageError("an empty batch cannot be collated. If empty batches are intended, give the DataLoader a collate function.");
}

void expect_equal_lengths(const std::vector<size_t>& lengths, const CollatePlace& place) {
  for (size_t i = 1; i < lengths.size(); ++i) {
    if (lengths[i] == lengths.front()) continue;
    throw UsageError(which_sample(0, place) + " and " + which_sample(i, place) + " cannot be collated into a batch: their lists" +
                     whereabouts(place) + " have " + std::to_string(lengths.front()) + " and " + std::to_string(lengths[i]) +
                     " elements." + kAdvice);
  }
}

void unequal_keys(size_t sample, const CollatePlace& place) {
  throw UsageError(which_sample(0, place) + " and " + which_sample(sample, place) +
                   " cannot be collated into a batch: their maps" + whereabouts(place) + " have different keys." + kAdvice);
}

}  // namespace accelerate::detail
