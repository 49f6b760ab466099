#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace accelerate::testing {

/// What `call` says when it throws an Expected, or "no error". Any other error fails the test and is returned, not thrown: a rank
/// that leaves a test early leaves its peers waiting.
template <class Expected, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    if (dynamic_cast<const Expected*>(&error) == nullptr) ADD_FAILURE() << "an error of another type: " << error.what();
    return error.what();
  }
  return "no error";
}

inline void expect_parts(const std::string& text, std::initializer_list<std::string> parts) {
  for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

}  // namespace accelerate::testing
