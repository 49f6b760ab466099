#include "data/open_loop.h"

namespace accelerate::detail {

std::vector<std::weak_ptr<const OpenLoop::Entry>>& OpenLoop::of_this_thread() {
  static thread_local std::vector<std::weak_ptr<const Entry>> loops;
  return loops;
}

OpenLoop::OpenLoop(bool prepared, std::source_location where) : entry_(std::make_shared<const Entry>(prepared, where)) {
  auto& loops = of_this_thread();
  std::erase_if(loops, [](const auto& loop) { return loop.expired(); });
  loops.push_back(entry_);
}

std::optional<std::source_location> OpenLoop::innermost_unprepared() {
  auto& loops = of_this_thread();
  while (!loops.empty() && loops.back().expired()) loops.pop_back();
  if (loops.empty()) return {};
  const auto loop = loops.back().lock();
  return loop && !loop->prepared ? std::optional(loop->where) : std::nullopt;
}

}  // namespace accelerate::detail
