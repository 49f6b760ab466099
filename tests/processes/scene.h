#pragma once

#include <exception>
#include <iostream>
#include <map>
#include <string>

/// What programs that play one of several scenes have in common.
namespace accelerate::testing {

/// A line on stdout, at once and in one piece: other processes write there too.
inline void say(const std::string& text) { std::cout << text + "\n" << std::flush; }

/// Plays the scene called `name`. The exit code: 0, or 3 when an exception left it, which is told.
inline int run_scene(const std::string& name, const std::map<std::string, void (*)()>& scenes) {
  try {
    scenes.at(name)();
    return 0;
  } catch (const std::exception& error) {
    say(std::string("left by: ") + error.what());
    return 3;
  }
}

}  // namespace accelerate::testing
