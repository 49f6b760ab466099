#include <ATen/DeviceAccelerator.h>
#include <accelerate/big_model/place.h>
#include <accelerate/core/error.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <ostream>
#include <tuple>

namespace accelerate {
namespace {

/// The kind of accelerators that LibTorch has here. Maps can be made on a host without one.
c10::DeviceType accelerator_type() { return at::getAccelerator().value_or(c10::kCUDA); }

bool is_kind_with_index(c10::DeviceType type) { return type != c10::kCPU && type != c10::kMPS && type != c10::kMeta; }

c10::DeviceIndex checked_index(int64_t index) {
  if (index < 0 || index > std::numeric_limits<c10::DeviceIndex>::max()) {
    throw UsageError("There is no accelerator " + std::to_string(index) + "; they are numbered from 0 to " +
                     std::to_string(std::numeric_limits<c10::DeviceIndex>::max()) + ".");
  }
  return static_cast<c10::DeviceIndex>(index);
}

std::optional<int64_t> whole_number(const std::string& text) {
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

c10::Device device_of(const std::string& text) {
  try {
    return c10::Device(text);
  } catch (const c10::Error&) {
    throw UsageError("'" + text +
                     "' is not a device. Use cpu, disk, the index of an accelerator such as 0, or a device such as "
                     "cuda:0.");
  }
}

}  // namespace

Place::Place(c10::Device device) : device_(device) {
  if (is_kind_with_index(device.type())) {
    device_.set_index(std::max<c10::DeviceIndex>(device.index(), 0));
  } else {
    device_.set_index(-1);  // "cpu" and "cpu:0" are one place
  }
}

Place::Place(int accelerator) : Place(c10::Device(accelerator_type(), checked_index(accelerator))) {}

Place::Place(const std::string& text) {
  if (text == "disk") {
    on_disk_ = true;
  } else if (const auto index = whole_number(text)) {
    *this = Place(c10::Device(accelerator_type(), checked_index(*index)));
  } else {
    *this = Place(device_of(text));
  }
}

Place::Place(const char* text) : Place(std::string(text == nullptr ? "" : text)) {}

Place Place::disk() {
  Place place;
  place.on_disk_ = true;
  return place;
}

bool Place::is_indexed() const { return !on_disk_ && is_kind_with_index(device_.type()); }

c10::Device Place::device() const {
  if (on_disk_) throw UsageError("The disk is not a device: check is_disk() before device().");
  return device_;
}

int Place::rank() const {
  if (on_disk_) return 3;
  if (is_kind_with_index(device_.type())) return 0;
  if (device_.type() == c10::kMPS) return 1;
  return device_.type() == c10::kCPU ? 2 : 4;
}

std::strong_ordering operator<=>(const Place& left, const Place& right) {
  const auto key = [](const Place& place) { return std::tuple(place.rank(), place.device_.index(), place.device_.type()); };
  return key(left) <=> key(right);
}

std::string to_string(const Place& place) {
  if (place.is_disk()) return "disk";
  const c10::Device device = place.device();
  return place.is_indexed() ? std::to_string(device.index()) : c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

std::ostream& operator<<(std::ostream& out, const Place& place) { return out << to_string(place); }

}  // namespace accelerate
