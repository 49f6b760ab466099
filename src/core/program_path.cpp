#include "core/program_path.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/escaped.h"

namespace accelerate::detail {
namespace {

constexpr int kNotExecutable = 126;
constexpr int kNotFound = 127;

int exit_code_for(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return errno == EACCES ? kNotExecutable : kNotFound;
  return S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0 ? 0 : kNotExecutable;
}

std::string describe(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return "cannot be accessed: a parent folder denies permission";
  if (S_ISDIR(status.st_mode)) return "is a folder, not a program";
  return fmt::format("is not executable; run `chmod +x {}`, or put its interpreter before it", escaped(path));
}

}  // namespace

ProgramPath find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const int code = exit_code_for(name);
    if (code == 0) return {.path = name};
    if (code == kNotFound) return {.exit_code = code, .problem = fmt::format("The program '{}' does not exist.", escaped(name))};
    return {.exit_code = code, .problem = fmt::format("The program '{}' {}.", escaped(name), describe(name))};
  }
  std::string denied;
  for (size_t begin = 0; !name.empty() && begin <= search_path.size();) {
    const size_t end = std::min(search_path.find(':', begin), search_path.size());
    // An empty entry of PATH is the current folder.
    const std::string folder = end == begin ? "." : search_path.substr(begin, end - begin);
    const std::string candidate = folder + "/" + name;
    const int code = exit_code_for(candidate);
    if (code == 0) return {.path = candidate};
    if (code == kNotExecutable && denied.empty()) denied = candidate;
    begin = end + 1;
  }
  if (!denied.empty()) {
    return {.exit_code = kNotExecutable, .problem = fmt::format("The program '{}' {}.", escaped(denied), describe(denied))};
  }
  const bool is_here = exit_code_for("./" + name) != kNotFound && !name.empty();
  return {.exit_code = kNotFound,
          .problem = fmt::format("The program '{}' was not found on PATH{}.", escaped(name),
                                 is_here ? fmt::format("; to run the one in this folder, use ./{}", escaped(name)) : "")};
}

}  // namespace accelerate::detail
