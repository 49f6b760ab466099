#include "capture/operator_watch.h"

#include <functional>
#include <mutex>
#include <string_view>

namespace accelerate::detail {
namespace {

// Of what LibTorch hands on to the threads of a backward pass, a kind that it does not use itself.
c10::DebugInfoKind info_kind() { return c10::DebugInfoKind::TEST_INFO_2; }

thread_local int depth = 0;

}  // namespace

/// What a watch has heard: found by the functions that LibTorch calls, on whatever thread. A watch within another one passes on
/// what it hears.
struct OperatorWatch::Heard : c10::DebugInfoBase, std::enable_shared_from_this<Heard> {
  mutable std::mutex mutex;
  uint64_t sum = 0;
  std::string last_outermost, last;
  const std::shared_ptr<Heard> around = current();

  static std::shared_ptr<Heard> current() {
    auto* heard = static_cast<Heard*>(c10::ThreadLocalDebugInfo::get(info_kind()));
    return heard != nullptr ? heard->shared_from_this() : nullptr;
  }

  void hear(const char* name, bool outermost) {
    {
      const std::lock_guard lock(mutex);
      sum += std::hash<std::string_view>{}(name) | 1;
      last = name;
      if (outermost) last_outermost = last;
    }
    if (around) around->hear(name, outermost);
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    if (const auto heard = current()) heard->hear(function.name(), depth == 0);
    ++depth;
    return nullptr;
  }
  static void end(const at::RecordFunction&, at::ObserverContext*) { --depth; }
};

OperatorWatch::OperatorWatch() : heard_(std::make_shared<Heard>()), handed_on_(info_kind(), heard_) {
  if (heard_->around) return;  // LibTorch calls already
  at::RecordFunctionCallback callback(&Heard::begin, &Heard::end);
  handle_ = at::addThreadLocalCallback(callback.scopes({at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  if (handle_) at::removeCallback(*handle_);
}

uint64_t OperatorWatch::fingerprint() const {
  const std::lock_guard lock(heard_->mutex);
  return heard_->sum;
}

std::string OperatorWatch::last() const {
  const std::lock_guard lock(heard_->mutex);
  return heard_->last == heard_->last_outermost ? heard_->last : heard_->last_outermost + " (" + heard_->last + ")";
}

}  // namespace accelerate::detail
