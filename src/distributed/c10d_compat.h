#pragma once

// c10d as this library uses it. What differs between LibTorch releases is settled here and nowhere else.
// Built and run against 2.13.0 (CPU) and 2.11.0+cu130: for what is used so far there is no difference.
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <exception>
#include <string>

namespace accelerate {

/// What c10d says went wrong, without the stack of C++ frames that it appends.
inline std::string words_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from"));
}

}  // namespace accelerate
