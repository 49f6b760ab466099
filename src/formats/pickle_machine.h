#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle_reader.h"

namespace accelerate::detail {

struct KnownGlobal;

/// The stack machine that a pickle is a program for, reduced to what builds plain data.
class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, const std::string& file, const PickleRules& rules)
      : bytes_(bytes), file_(file), rules_(rules) {}

  /// Runs to STOP. The tree's root is the result, not yet checked.
  void run();
  /// Bytes read so far.
  size_t position() const { return position_; }
  PickleTree& tree() { return tree_; }

  /// CheckpointError with file and position.
  [[noreturn]] void fail(const std::string& what) const;
  /// Charges for `size` bytes or values that are copied. References are cheap in a pickle, so without this a small pickle could
  /// copy a large string again and again.
  void charge(size_t size);

 private:
  using Step = void (PickleMachine::*)();
  struct Opcode {
    char code;
    Step step;
  };
  static const Opcode kOpcodes[];
  static Step step_of(unsigned char code);

  std::string_view take(uint64_t size);
  std::string_view line();
  template <typename Number>
  Number take_number();
  int64_t take_decimal();

  void push(PickleNode* node) { stack_.push_back(node); }
  PickleNode* pop();
  PickleNode* top();
  PickleItems pop_to_mark();
  PickleNode* shared(PickleKind kind, PickleNode::Data data = {});
  PickleNode* top_of(PickleKind kind, const char* what);

  // One step for each opcode, in groups.
  void stop();
  void proto();
  void frame();
  void mark();
  void drop();
  void drop_to_mark();
  void duplicate();
  void unsupported();
  void none();
  void yes();
  void no();
  void int_line();
  void long_line();
  void float_line();
  void byte_int();
  void short_int();
  void plain_int();
  void long_int();
  void longer_int();
  void binary_float();
  void text_line();
  void quoted_line();
  void text_of(uint64_t size);
  void bytes_of(uint64_t size);
  void string_of(uint64_t size);
  template <typename Size>
  void sized_text() {
    text_of(take_number<Size>());
  }
  template <typename Size>
  void sized_bytes() {
    bytes_of(take_number<Size>());
  }
  template <typename Size>
  void sized_string() {
    string_of(take_number<Size>());
  }
  void byte_array();
  void empty_list();
  void empty_dict();
  void empty_set();
  void empty_tuple();
  void marked_list();
  void marked_dict();
  void marked_tuple();
  void marked_frozen_set();
  template <size_t kCount>
  void short_tuple();
  void append();
  void appends();
  void add_items();
  void set_item();
  void set_items();
  template <typename Index>
  void get();
  template <typename Index>
  void put();
  void get_line();
  void put_line();
  void memoize();
  void global();
  void stack_global();
  void instance();
  void object();
  void reduce();
  void new_object();
  void new_object_with_keywords();
  void build();
  void persistent_id();

  void push_boolean(bool value);
  void push_integer(int64_t value);
  void push_long(std::string_view little_endian);
  void push_global(std::string module, std::string name);
  void remember(uint64_t index, PickleNode* node);
  void recall(uint64_t index);
  void append_to(PickleNode* target, const PickleItems& items);
  void set_into(PickleNode* target, const PickleItems& items);
  PickleNode* call(PickleNode* function, PickleNode* arguments);

  std::string_view bytes_;
  const std::string& file_;
  const PickleRules& rules_;
  size_t position_ = 0, charged_ = 0;
  bool stopped_ = false;
  PickleTree tree_;
  Pieces<PickleNode*> stack_;
  Pieces<size_t> marks_;
  Pieces<PickleNode*> memo_;                      // the values are numbered one by one,
  std::map<uint64_t, PickleNode*> distant_memo_;  // or with arbitrary numbers
  std::map<PickleKind, PickleNode*> shared_;      // None, (): one node each, as in Python,
  std::array<PickleNode*, 2> booleans_ = {};      // and what else a byte or two can name again and again
  std::array<PickleNode*, 256> small_integers_ = {};
};

/// Throws through `machine.fail` unless `root` is plain data without cycles (see read_pickle).
void check_pickled_value(const PickleMachine& machine, PickleNode& root, size_t pickle_size);

/// Is it text in UTF-8? Lone surrogates count, as in Python.
bool is_pickled_text(std::string_view bytes);

}  // namespace accelerate::detail
