#include "accelerator/operator_watch.h"

#include <functional>
#include <string_view>

namespace accelerate::detail {
namespace {

// Of those that LibTorch hands on to the threads of a backward pass, one that it does not use itself.
c10::DebugInfoKind info_kind() { return c10::DebugInfoKind::TEST_INFO_2; }

thread_local int depth = 0;

void end_operator(const at::RecordFunction&, at::ObserverContext*) { --depth; }

}  // namespace

/// How the functions that LibTorch calls find their watch, and that the one around it.
struct OperatorWatch::Info : c10::DebugInfoBase {
  OperatorWatch* watch = nullptr;
  Info* around = nullptr;
};

std::unique_ptr<at::ObserverContext> OperatorWatch::begin_operator(const at::RecordFunction& function) {
  for (auto* info = static_cast<Info*>(c10::ThreadLocalDebugInfo::get(info_kind())); info != nullptr; info = info->around)
    info->watch->begin(function.name(), depth == 0);
  ++depth;
  return nullptr;
}

OperatorWatch::OperatorWatch() {
  const auto info = std::make_shared<Info>();
  info->watch = this;
  info->around = static_cast<Info*>(c10::ThreadLocalDebugInfo::get(info_kind()));
  guard_.emplace(info_kind(), info);
  if (info->around != nullptr) return;  // operators are heard of already
  at::RecordFunctionCallback callback(&begin_operator, &end_operator);
  handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  if (handle_) at::removeCallback(*handle_);
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
