#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/pickle_value.h"

namespace accelerate::detail {

/// The bytes of a pickle (protocol 2) while it is written, and its memo: which objects stand in it already, numbered as Python's
/// pickler numbers them. Each function writes what its name says.
class PickleOutput {
 public:
  PickleOutput() : bytes_("\x80\x02") {}
  std::string take() { return std::move(bytes_); }

  /// Opcodes as they are.
  void code(char opcode) { bytes_ += opcode; }
  void codes(std::string_view opcodes) { bytes_ += opcodes; }

  void boolean(bool value) { code(value ? '\x88' : '\x89'); }
  void integer(int64_t value);
  /// Little-endian two's complement, of as few bytes as it needs.
  void big_integer(const std::string& bytes);
  void real(double value);
  void text(const std::string& text);
  /// Text that is one object in Python wherever it stands.
  void word(const std::string& text);
  void global(const std::string& module, const std::string& name);
  /// Before and after `count` values that become a tuple. Nothing needs to be remembered of an empty one.
  void begin_tuple(size_t count);
  void end_tuple(size_t count);
  /// A tuple of ints, remembered.
  void integers(const std::vector<int64_t>& values);
  /// The call that makes bytes: protocol 2 has none of its own. For no bytes at all Python makes another call, `bytes()`, which
  /// torch.load(weights_only=True) refuses; this one it accepts.
  void bytes_call(const std::string& bytes);

  /// The object just written gets the next number.
  void memoize();
  /// The same, so that `recalled` finds it again.
  void memoize(const PickleNode& node);
  void memoize(const std::string& name);
  /// True when it was written before: then a reference to it has been written now.
  bool recalled(const PickleNode& node);
  bool recalled(const std::string& name);

 private:
  template <typename Number>
  void raw(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void numbered(char short_code, char long_code, uint32_t index);

  std::string bytes_;
  uint32_t count_ = 0;
  std::unordered_map<const PickleNode*, uint32_t> nodes_;
  std::unordered_map<std::string, uint32_t> named_;  // what has no node: classes, words, dtypes, storages
};

}  // namespace accelerate::detail
