#pragma once

// c10d as this library uses it. What differs between LibTorch releases is settled here and nowhere else.
// Built and run against 2.13.0 (CPU), and, but for the reducer, against 2.11.0+cu130.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerate::detail {

/// What c10d says went wrong, without the place in its own sources, its advice, and the stack of C++ frames that it appends.
inline std::string words_of(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find("\nException raised from"));
  text = text.substr(0, text.find(" This is typically caused by"));
  const auto place_end = text.starts_with("[/") ? text.find("] ") : std::string::npos;
  return place_end == std::string::npos ? text : text.substr(place_end + 2);
}

/// A reducer of gradients. Later releases take a list of caps, one for each bucket, and more after it that has defaults.
template <class Reducer, class... Arguments>
std::shared_ptr<Reducer> make_reducer(Arguments&&... arguments) {
  using Caps = std::vector<int64_t>;
  if constexpr (std::is_constructible_v<Reducer, Arguments..., Caps>) {
    return std::make_shared<Reducer>(std::forward<Arguments>(arguments)..., Caps());
  } else {
    return std::make_shared<Reducer>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace accelerate::detail
