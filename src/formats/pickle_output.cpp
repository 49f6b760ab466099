#include "formats/pickle_output.h"

#include <cstring>

namespace accelerate::detail {

void PickleOutput::numbered(char short_code, char long_code, uint32_t index) {
  code(index < 256 ? short_code : long_code);
  index < 256 ? raw(static_cast<uint8_t>(index)) : raw(index);
}

void PickleOutput::memoize() { numbered('q', 'r', count_++); }

void PickleOutput::memoize(const PickleNode& node) {
  nodes_[&node] = count_;
  memoize();
}

void PickleOutput::memoize(const std::string& name) {
  named_[name] = count_;
  memoize();
}

bool PickleOutput::recalled(const PickleNode& node) {
  const auto found = nodes_.find(&node);
  if (found != nodes_.end()) numbered('h', 'j', found->second);
  return found != nodes_.end();
}

bool PickleOutput::recalled(const std::string& name) {
  const auto found = named_.find(name);
  if (found != named_.end()) numbered('h', 'j', found->second);
  return found != named_.end();
}

void PickleOutput::integer(int64_t value) {
  if (value < INT32_MIN || value > INT32_MAX) {
    std::string bytes(reinterpret_cast<const char*>(&value), 8);
    const char sign = value < 0 ? '\xff' : '\0';
    while (bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0) bytes.pop_back();
    big_integer(bytes);
  } else if (value < 0 || value > 0xFFFF) {
    code('J');
    raw(static_cast<int32_t>(value));
  } else if (value > 0xFF) {
    code('M');
    raw(static_cast<uint16_t>(value));
  } else {
    code('K');
    raw(static_cast<uint8_t>(value));
  }
}

void PickleOutput::big_integer(const std::string& bytes) {
  if (bytes.size() < 256) {
    code('\x8a');
    raw(static_cast<uint8_t>(bytes.size()));
  } else {
    code('\x8b');
    raw(static_cast<int32_t>(bytes.size()));
  }
  codes(bytes);
}

void PickleOutput::real(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  code('G');
  raw(__builtin_bswap64(bits));
}

void PickleOutput::text(const std::string& text) {
  code('X');
  raw(static_cast<uint32_t>(text.size()));
  codes(text);
}

void PickleOutput::word(const std::string& text) {
  if (recalled("text " + text)) return;
  this->text(text);
  memoize("text " + text);
}

void PickleOutput::global(const std::string& module, const std::string& name) {
  const std::string lines = module + "\n" + name + "\n";
  if (recalled(lines)) return;
  codes("c" + lines);
  memoize(lines);
}

void PickleOutput::begin_tuple(size_t count) {
  if (count > 3) code('(');
  if (count == 0) code(')');
}

void PickleOutput::end_tuple(size_t count) {
  if (count > 0) code(count <= 3 ? static_cast<char>('\x84' + count) : 't');
}

void PickleOutput::integers(const std::vector<int64_t>& values) {
  begin_tuple(values.size());
  for (const int64_t value : values) integer(value);
  end_tuple(values.size());
  if (!values.empty()) memoize();
}

void PickleOutput::bytes_call(const std::string& bytes) {
  global("_codecs", "encode");
  std::string characters;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) characters += static_cast<char>(0xC0 | (byte >> 6));
    characters += static_cast<char>(byte < 0x80 ? byte : 0x80 | (byte & 0x3F));
  }
  text(characters);
  memoize();
  word("latin1");
  end_tuple(2);
  memoize();
  code('R');
}

}  // namespace accelerate::detail
