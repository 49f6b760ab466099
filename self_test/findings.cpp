#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <accelerate/accelerator/accelerator.h>
#include <accelerate/core/format.h>

#include <cmath>

#include "check.h"

namespace accelerate::self_test {
namespace {

constexpr size_t kShown = 24;

std::string text_of(const std::string& text) { return "'" + text + "'"; }
std::string text_of(int64_t number) { return std::to_string(number); }

// The beginning of a long list, and how much is not shown.
template <class T>
std::string text_of(const std::vector<T>& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size() && i < kShown; ++i) text += (i > 0 ? ", " : "") + text_of(list[i]);
  return text + (list.size() > kShown ? ", ... " + std::to_string(list.size()) + " in all]" : "]");
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::string text = std::string(c10::toString(tensor.scalar_type())) + " of shape " + text_of(tensor.sizes().vec()) + ": [";
  const auto flat = tensor.detach().to(at::kCPU, at::kDouble).reshape({-1});
  for (int64_t i = 0; i < flat.numel() && i < static_cast<int64_t>(kShown); ++i) {
    text += format("{}{:g}", i > 0 ? ", " : "", flat[i].item<double>());
  }
  return text + (flat.numel() > static_cast<int64_t>(kShown) ? ", ...]" : "]");
}

}  // namespace

void Findings::expect(bool holds, const std::string& what) {
  if (!holds) problems_.push_back("'" + what + "' does not hold.");
}

void Findings::differ(const std::string& what, const std::string& got, const std::string& expected) {
  problems_.push_back("'" + what + "' does not hold: expected " + expected + ", found " + got + ".");
}

void Findings::equal(int64_t got, int64_t expected, const std::string& what) {
  if (got != expected) differ(what, text_of(got), text_of(expected));
}

void Findings::equal(const std::string& got, const std::string& expected, const std::string& what) {
  if (got != expected) differ(what, text_of(got), text_of(expected));
}

void Findings::equal(const std::vector<std::string>& got, const std::vector<std::string>& expected, const std::string& what) {
  if (got != expected) differ(what, text_of(got), text_of(expected));
}

void Findings::equal(const Numbers& got, const Numbers& expected, const std::string& what) {
  if (got != expected) differ(what, text_of(got), text_of(expected));
}

void Findings::equal(const at::Tensor& got, const at::Tensor& expected, const std::string& what) {
  const bool same = got.defined() && got.sizes() == expected.sizes() && got.scalar_type() == expected.scalar_type() &&
                    at::equal(got.cpu(), expected.cpu());
  if (!same) differ(what, text_of(got), text_of(expected));
}

void Findings::near(double got, double expected, double tolerance, const std::string& what) {
  // Written so that NaN never matches.
  if (!(std::abs(got - expected) <= tolerance)) {
    differ(what, format("{:.9g}", got), format("{:.9g} within {:g}", expected, tolerance));
  }
}

AcceleratorOptions patient(AcceleratorOptions options) {
  options.timeout = std::chrono::minutes(3);
  return options;
}

at::Tensor integers(const Accelerator& accelerator, const Numbers& values) {
  return at::tensor(values, at::kLong).to(accelerator.device());
}

Numbers numbers_of(const at::Tensor& tensor) {
  const auto flat = tensor.to(at::kCPU, at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

Numbers range(int64_t start, int64_t stop) {
  Numbers numbers;
  for (int64_t i = start; i < stop; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace accelerate::self_test
