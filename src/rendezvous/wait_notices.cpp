#include "rendezvous/wait_notices.h"

#include "console/screen.h"

namespace accelerate::detail {
namespace {

constexpr std::chrono::minutes kBetweenNotices{1};

}  // namespace

WaitNotices::WaitNotices(std::chrono::milliseconds after) {
  if (after.count() > 0) due_ = began_ + after;
}

void WaitNotices::tell_if_due(const std::string& who, const std::function<std::string()>& whom) {
  if (Clock::now() < due_) return;
  const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began_).count();
  Screen::of_process().write_line(2, "accelerate: " + who + " has waited " + std::to_string(waited) + " s " + whom());
  due_ = Clock::now() + kBetweenNotices;
}

}  // namespace accelerate::detail
