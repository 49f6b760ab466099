#pragma once

#include <c10/core/Device.h>

#include <compare>
#include <functional>
#include <iosfwd>
#include <string>

namespace accelerate {

/// Where a weight lives: on a device, or on disk.
///
///     Place gpu = 0, host = "cpu", far = "disk", other = c10::Device("cuda:1");
class Place {
 public:
  /// The CPU.
  Place() = default;
  /// A device; without an index the first of its kind.
  Place(c10::Device device);
  Place(c10::DeviceType type) : Place(c10::Device(type)) {}
  /// The accelerator of this index, as Python's device maps name it: a CUDA device unless LibTorch has another kind.
  Place(int accelerator);
  /// "cpu", "disk", "cuda:1", "meta" … or the index of an accelerator: "1". UsageError for anything else.
  Place(const std::string& text);
  Place(const char* text);

  static Place disk();

  bool is_disk() const { return on_disk_; }
  bool is_cpu() const { return !on_disk_ && device_.is_cpu(); }
  /// An accelerator that is told from others by its index: all but mps, which is one.
  bool is_indexed() const;
  /// The device; UsageError on disk.
  c10::Device device() const;

  friend bool operator==(const Place& left, const Place& right) {
    return left.on_disk_ == right.on_disk_ && left.device_ == right.device_;
  }
  /// Indexed accelerators by their index, then mps, the CPU, the disk, and devices that hold nothing: the order in which
  /// memory is filled.
  friend std::strong_ordering operator<=>(const Place& left, const Place& right);

 private:
  int rank() const;

  c10::Device device_ = c10::Device(c10::kCPU);
  bool on_disk_ = false;
};

/// As Python writes it: the index of an accelerator, "cpu", "disk", "mps".
std::string to_string(const Place& place);
std::ostream& operator<<(std::ostream& out, const Place& place);

}  // namespace accelerate

template <>
struct std::hash<accelerate::Place> {
  size_t operator()(const accelerate::Place& place) const noexcept {
    return place.is_disk() ? 0 : std::hash<c10::Device>()(place.device());
  }
};
