#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace accelerate::testing {

/// A new, empty folder that is removed with all it holds.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "accelerate_launch_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder could be made");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  std::string name() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace accelerate::testing
