#include "accelerator/operator_watch.h"

#include <functional>
#include <memory>
#include <string_view>

namespace accelerate::detail {
namespace {

// LibTorch calls plain functions, on several threads: there is one watch at a time, others see nothing.
std::mutex watching;
OperatorWatch* watch = nullptr;
thread_local int depth = 0;

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& function) {
  const std::lock_guard lock(watching);
  if (watch != nullptr) watch->begin(function.name(), depth == 0);
  ++depth;
  return nullptr;
}

void end_operator(const at::RecordFunction&, at::ObserverContext*) { --depth; }

}  // namespace

OperatorWatch::OperatorWatch()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&begin_operator, &end_operator).scopes({at::RecordScope::FUNCTION}))) {
  const std::lock_guard lock(watching);
  if (watch == nullptr) watch = this;
}

OperatorWatch::~OperatorWatch() {
  at::removeCallback(handle_);
  const std::lock_guard lock(watching);
  if (watch == this) watch = nullptr;
}

uint64_t OperatorWatch::fingerprint() const {
  const std::lock_guard lock(mutex_);
  return sum_;
}

std::string OperatorWatch::last() const {
  const std::lock_guard lock(mutex_);
  return last_ == last_outermost_ ? last_ : last_outermost_ + " (" + last_ + ")";
}

void OperatorWatch::begin(const char* name, bool outermost) {
  const std::lock_guard lock(mutex_);
  sum_ += std::hash<std::string_view>{}(name) | 1;
  last_ = name;
  if (outermost) last_outermost_ = last_;
}

}  // namespace accelerate::detail
