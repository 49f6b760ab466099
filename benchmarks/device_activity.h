#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace bench {

struct KernelTotal {
  std::string name;
  double microseconds = 0;
  int64_t calls = 0;
};

/// What a device did while something ran.
struct DeviceActivity {
  /// Time in which at least one kernel, copy or fill was running.
  double busy_us = 0;
  /// Kernels started; copies and fills are none.
  int64_t kernels = 0;
  /// By name, the longest first.
  std::vector<KernelTotal> totals;
};

/// The length of all intervals, what overlaps counted once.
inline uint64_t covered(std::vector<std::pair<uint64_t, uint64_t>> intervals) {
  std::sort(intervals.begin(), intervals.end());
  uint64_t sum = 0, end = 0;
  for (const auto& [start, stop] : intervals) {
    if (stop <= end) continue;
    sum += stop - std::max(start, end);
    end = stop;
  }
  return sum;
}

/// What the GPU does during `work`, which waits for it. Without a GPU (`on_gpu` false) there is nothing to see.
inline DeviceActivity device_activity(bool on_gpu, const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  namespace impl = torch::profiler::impl;
  std::set<impl::ActivityType> activities = {impl::ActivityType::CPU};
  if (on_gpu) activities.insert(impl::ActivityType::CUDA);
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  const auto result = profiler::disableProfiler();
  DeviceActivity found;
  std::vector<std::pair<uint64_t, uint64_t>> intervals;
  std::map<std::string, KernelTotal> by_name;
  for (const auto& event : result->events()) {
    if (event.deviceType() != c10::DeviceType::CUDA) continue;
    const auto name = event.name();
    intervals.emplace_back(event.startNs(), event.startNs() + event.durationNs());
    found.kernels += !name.starts_with("Memcpy") && !name.starts_with("Memset");
    auto& total = by_name[name];
    total.name = name;
    total.microseconds += static_cast<double>(event.durationNs()) / 1e3;
    ++total.calls;
  }
  found.busy_us = static_cast<double>(covered(std::move(intervals))) / 1e3;
  for (auto& [name, total] : by_name) found.totals.push_back(std::move(total));
  std::sort(found.totals.begin(), found.totals.end(),
            [](const auto& a, const auto& b) { return a.microseconds > b.microseconds; });
  return found;
}

}  // namespace bench
