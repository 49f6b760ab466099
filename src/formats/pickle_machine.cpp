#include "formats/pickle_machine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "core/escaped.h"
#include "formats/pickle_calls.h"

namespace accelerate::detail {
namespace {

constexpr size_t kMostCopies = 4;  // times the bytes of the pickle
constexpr int kNewestProtocol = 5;

/// A name from a file, fit for a message.
std::string shown(std::string_view name) { return escaped(name, 120); }

/// The shortest two's complement of the number.
std::string_view fewest_bytes(std::string_view number) {
  while (number.size() > 1) {
    const auto last = static_cast<unsigned char>(number.back());
    const auto before = static_cast<unsigned char>(number[number.size() - 2]);
    if (!(last == 0 && before < 0x80) && !(last == 0xFF && before >= 0x80)) break;
    number.remove_suffix(1);
  }
  return number;
}

}  // namespace

void PickleMachine::fail(const std::string& what) const {
  throw CheckpointError(file_ + ": " + escaped(what, kLongestQuote) + " (byte " + std::to_string(position_) + " of its pickle).");
}

void PickleMachine::charge(size_t size) {
  charged_ += size;
  if (charged_ > kMostCopies * bytes_.size() + 1024) fail("the pickle copies the same values over and over");
}

std::string_view PickleMachine::take(uint64_t size) {
  if (size > bytes_.size() - position_) {
    throw PickleCutShort(file_ + " has a truncated pickle: " + std::to_string(size) + " bytes should follow byte " +
                         std::to_string(position_) + ".");
  }
  const auto taken = bytes_.substr(position_, size);
  position_ += size;
  return taken;
}

std::string_view PickleMachine::line() {
  const size_t end = bytes_.find('\n', position_);
  const auto text = take(end == std::string_view::npos ? bytes_.size() - position_ + 1 : end - position_);
  take(1);
  return text;
}

template <typename Number>
Number PickleMachine::take_number() {
  Number number;
  std::memcpy(&number, take(sizeof(Number)).data(), sizeof(Number));
  return number;
}

int64_t PickleMachine::take_decimal() {
  std::string_view text = line();
  if (text.ends_with('L')) text.remove_suffix(1);
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty()) fail(shown(text) + " is not a number");
  return number;
}

PickleNode* PickleMachine::pop() {
  PickleNode* node = top();
  stack_.pop_back();
  return node;
}

PickleNode* PickleMachine::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) fail("the pickle pops from an empty stack");
  return stack_.back();
}

PickleItems PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("the pickle pops to a missing mark");
  const size_t begin = marks_.back();
  PickleItems items(stack_.size() - begin, [&](size_t i) { return stack_[begin + i]; });
  stack_.shrink(begin);
  marks_.pop_back();
  return items;
}

PickleNode* PickleMachine::shared(PickleKind kind, PickleNode::Data data) {
  PickleNode*& node = shared_[kind];
  if (node == nullptr) node = tree_.make(kind, std::move(data));
  return node;
}

PickleNode* PickleMachine::top_of(PickleKind kind, const char* what) {
  PickleNode* node = top();
  if (!node->is(kind)) fail("the pickle adds " + std::string(what) + " to " + std::string(to_string(node->kind)));
  return node;
}

void PickleMachine::stop() {
  tree_.root = pop();
  stopped_ = true;
}

void PickleMachine::proto() {
  const int version = take_number<uint8_t>();
  if (version > kNewestProtocol) fail("unknown pickle protocol " + std::to_string(version));
}

void PickleMachine::frame() { take_number<uint64_t>(); }
void PickleMachine::mark() { marks_.push_back(stack_.size()); }
void PickleMachine::drop_to_mark() { pop_to_mark(); }
void PickleMachine::duplicate() { push(top()); }

void PickleMachine::drop() { !marks_.empty() && marks_.back() == stack_.size() ? marks_.pop_back() : void(pop()); }

void PickleMachine::unsupported() { fail("the pickle uses extension codes or out-of-band buffers, which are not supported"); }

void PickleMachine::none() { push(shared(PickleKind::kNone)); }
void PickleMachine::yes() { push_boolean(true); }
void PickleMachine::no() { push_boolean(false); }

void PickleMachine::push_boolean(bool value) {
  PickleNode*& node = booleans_[value ? 1 : 0];
  if (node == nullptr) node = tree_.boolean(value);
  push(node);
}

void PickleMachine::push_integer(int64_t value) {
  if (value < 0 || value >= static_cast<int64_t>(small_integers_.size())) return push(tree_.integer(value));
  PickleNode*& node = small_integers_[static_cast<size_t>(value)];
  if (node == nullptr) node = tree_.integer(value);
  push(node);
}

void PickleMachine::int_line() {
  const std::string_view text = bytes_.substr(position_, 3);
  if (text == "00\n" || text == "01\n") {  // how protocol 0 spells False and True
    take(3);
    push_boolean(text[1] == '1');
  } else {
    push_integer(take_decimal());
  }
}

void PickleMachine::long_line() { push_integer(take_decimal()); }

void PickleMachine::float_line() {
  const std::string_view text = line();
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || end != text.data() + text.size() || text.empty()) fail(shown(text) + " is not a number");
  push(tree_.number(number));
}

void PickleMachine::byte_int() { push_integer(take_number<uint8_t>()); }
void PickleMachine::short_int() { push_integer(take_number<uint16_t>()); }
void PickleMachine::plain_int() { push_integer(take_number<int32_t>()); }
void PickleMachine::long_int() { push_long(take(take_number<uint8_t>())); }

void PickleMachine::longer_int() {
  const auto size = take_number<int32_t>();
  if (size < 0) fail("a number of negative length");
  push_long(take(static_cast<uint64_t>(size)));
}

void PickleMachine::push_long(std::string_view little_endian) {
  const auto number = fewest_bytes(little_endian);
  if (number.size() > 8) {
    push(tree_.make(PickleKind::kBigInt, std::string(number)));
    return;
  }
  int64_t value = !number.empty() && (number.back() & 0x80) != 0 ? -1 : 0;  // sign-extended into the omitted bytes
  std::memcpy(&value, number.data(), number.size());
  push_integer(value);
}

void PickleMachine::binary_float() {
  const auto bits = __builtin_bswap64(take_number<uint64_t>());
  double number = 0;
  std::memcpy(&number, &bits, sizeof(number));
  push(tree_.number(number));
}

void PickleMachine::text_of(uint64_t size) {
  const auto text = take(size);
  if (!is_pickled_text(text)) fail("a string is not UTF-8");
  push(tree_.text(std::string(text)));
}

void PickleMachine::bytes_of(uint64_t size) { push(tree_.bytes(std::string(take(size)))); }

/// The str of Python 2, which was text and bytes in one.
void PickleMachine::string_of(uint64_t size) {
  const auto text = take(size);
  push(is_pickled_text(text) ? tree_.text(std::string(text)) : tree_.bytes(std::string(text)));
}

void PickleMachine::text_line() {
  const auto text = line();
  if (text.find('\\') != std::string_view::npos || !is_pickled_text(text))
    fail("a protocol 0 string with escapes is not supported");
  push(tree_.text(std::string(text)));
}

void PickleMachine::quoted_line() {
  const auto text = line();
  if (text.size() < 2 || text.front() != text.back() || (text.front() != '\'' && text.front() != '"') ||
      text.find('\\') != std::string_view::npos || !is_pickled_text(text)) {
    fail("unsupported protocol 0 string: " + shown(text));
  }
  push(tree_.text(std::string(text.substr(1, text.size() - 2))));
}

void PickleMachine::byte_array() { push(tree_.make(PickleKind::kByteArray, std::string(take(take_number<uint64_t>())))); }

void PickleMachine::empty_list() { push(tree_.list()); }
void PickleMachine::empty_dict() { push(tree_.dict()); }
void PickleMachine::empty_set() { push(tree_.make(PickleKind::kSet, PickleItems{})); }
void PickleMachine::empty_tuple() { push(shared(PickleKind::kTuple, std::unique_ptr<PickleItems>())); }
void PickleMachine::marked_list() { push(tree_.list(pop_to_mark())); }
void PickleMachine::marked_tuple() { push(tree_.tuple(pop_to_mark())); }
void PickleMachine::marked_frozen_set() { push(tree_.make(PickleKind::kFrozenSet, pop_to_mark())); }

void PickleMachine::marked_dict() {
  const auto items = pop_to_mark();
  push(tree_.dict());
  set_into(top(), items);
}

template <size_t kCount>
void PickleMachine::short_tuple() {
  std::array<PickleNode*, kCount> items = {};
  for (size_t i = kCount; i-- > 0;) items[i] = pop();
  push(tree_.tuple(PickleItems(kCount, [&](size_t i) { return items[i]; })));
}

void PickleMachine::append_to(PickleNode* target, const PickleItems& items) {
  auto& all = target->own_items();
  for (PickleNode* item : items) all.push_back(item);
}

void PickleMachine::set_into(PickleNode* target, const PickleItems& items) {
  if (!target->is_dict()) fail("the pickle sets items of " + std::string(to_string(target->kind)));
  if (items.size() % 2 != 0) fail("a key without a value");
  auto& all = target->own_dict().items;
  for (size_t i = 0; i < items.size(); i += 2) all.push_back({items[i], items[i + 1]});
}

void PickleMachine::append() {
  PickleNode* item = pop();
  append_to(top_of(PickleKind::kList, "an item"), {item});
}

void PickleMachine::appends() {
  const auto items = pop_to_mark();
  append_to(top_of(PickleKind::kList, "items"), items);
}

void PickleMachine::add_items() {
  const auto items = pop_to_mark();
  append_to(top_of(PickleKind::kSet, "members"), items);
}

void PickleMachine::set_item() {
  PickleNode* value = pop();
  PickleNode* key = pop();
  set_into(top(), {key, value});
}

void PickleMachine::set_items() {
  const auto items = pop_to_mark();
  set_into(top(), items);
}

void PickleMachine::remember(uint64_t index, PickleNode* node) {
  if (index > memo_.size()) {
    distant_memo_[index] = node;
  } else if (index < memo_.size()) {
    memo_[index] = node;
  } else {
    memo_.push_back(node);
    distant_memo_.erase(index);
  }
}

void PickleMachine::recall(uint64_t index) {
  if (index < memo_.size()) return push(memo_[index]);
  const auto found = distant_memo_.find(index);
  if (found == distant_memo_.end()) fail("the pickle refers to value " + std::to_string(index) + ", which is not in its memo");
  push(found->second);
}

template <typename Index>
void PickleMachine::get() {
  recall(take_number<Index>());
}

template <typename Index>
void PickleMachine::put() {
  remember(take_number<Index>(), top());
}

void PickleMachine::get_line() { recall(static_cast<uint64_t>(take_decimal())); }
void PickleMachine::put_line() { remember(static_cast<uint64_t>(take_decimal()), top()); }
void PickleMachine::memoize() { remember(memo_.size() + distant_memo_.size(), top()); }

void PickleMachine::push_global(std::string module, std::string name) {
  module = modern_module(module);
  const std::string full = module + "." + name;
  if (const auto* dtype = module == "torch" ? find_dtype(name) : nullptr) {
    push(tree_.make(PickleKind::kDtype, dtype));
  } else if (find_known_global(module, name) != nullptr ||
             std::find(rules_.objects.begin(), rules_.objects.end(), full) != rules_.objects.end()) {
    push(tree_.make(PickleKind::kGlobal, full));
  } else {
    fail("it refers to " + shown(full) + ", which is not allowed. It was rejected and nothing was run; if you " +
         "trust the file, load it in Python and save the plain state dict");
  }
}

void PickleMachine::global() {
  std::string module(line());
  push_global(std::move(module), std::string(line()));
}

void PickleMachine::stack_global() {
  const PickleNode* name = pop();
  const PickleNode* module = pop();
  if (!name->is(PickleKind::kText) || !module->is(PickleKind::kText)) fail("a name that is not text");
  charge(name->text().size() + module->text().size());
  push_global(module->text(), name->text());
}

void PickleMachine::instance() {
  std::string module(line());
  push_global(std::move(module), std::string(line()));
  PickleNode* type = pop();
  push(call(type, tree_.tuple(pop_to_mark())));
}

void PickleMachine::object() {
  const auto items = pop_to_mark();
  if (items.empty()) fail("an object without a class");
  push(call(items.front(), tree_.tuple(PickleItems(items.size() - 1, [&](size_t i) { return items[i + 1]; }))));
}

PickleNode* PickleMachine::call(PickleNode* function, PickleNode* arguments) {
  if (!function->is(PickleKind::kGlobal)) fail("the pickle calls " + std::string(to_string(function->kind)));
  if (!arguments->is(PickleKind::kTuple))
    fail("the pickle calls with arguments that are " + std::string(to_string(arguments->kind)));
  const std::string& full = function->text();
  const size_t dot = full.rfind('.');
  const KnownGlobal* known = find_known_global(std::string_view(full).substr(0, dot), std::string_view(full).substr(dot + 1));
  if (known == nullptr) {
    if (full == kGetAttribute) return call_getattr(*this, arguments->items());
    return tree_.make(PickleKind::kObject, std::make_unique<PickleObject>(PickleObject{.name = full, .arguments = arguments}));
  }
  if (known->call == nullptr) fail("the pickle calls " + full + ", which is not allowed. It was rejected");
  return known->call(*this, arguments->items());
}

void PickleMachine::reduce() {
  new_object();
  if (top()->is(PickleKind::kObject)) std::get<std::unique_ptr<PickleObject>>(top()->data)->called = true;
}

void PickleMachine::new_object() {
  PickleNode* arguments = pop();
  PickleNode* function = pop();
  push(call(function, arguments));
}

void PickleMachine::new_object_with_keywords() {
  const PickleNode* keywords = pop();
  if (!keywords->is_dict() || !keywords->dict().items.empty()) fail("objects with keyword arguments are not supported");
  new_object();
}

void PickleMachine::build() {
  PickleNode* state = pop();
  PickleNode* target = top();
  if (target->is(PickleKind::kOrderedDict)) {
    if (!state->is_dict()) fail("attributes that are " + std::string(to_string(state->kind)));
    target->own_dict().attributes = state;
  } else if (target->is(PickleKind::kArray)) {
    build_array(*this, *std::get<std::unique_ptr<PickleArray>>(target->data), *state);
  } else if (target->is(PickleKind::kObject)) {
    PickleObject& object = *std::get<std::unique_ptr<PickleObject>>(target->data);
    object.name == "numpy.dtype" ? build_numpy_dtype(*this, object, state) : void(object.state = state);
  } else {
    fail("the pickle sets the state of " + std::string(to_string(target->kind)));
  }
}

void PickleMachine::persistent_id() { push(storage_from_id(*this, *pop())); }

const PickleMachine::Opcode PickleMachine::kOpcodes[] = {
    {'.', &PickleMachine::stop},
    {'\x80', &PickleMachine::proto},
    {'\x95', &PickleMachine::frame},
    {'(', &PickleMachine::mark},
    {'0', &PickleMachine::drop},
    {'1', &PickleMachine::drop_to_mark},
    {'2', &PickleMachine::duplicate},
    {'N', &PickleMachine::none},
    {'\x88', &PickleMachine::yes},
    {'\x89', &PickleMachine::no},
    {'I', &PickleMachine::int_line},
    {'L', &PickleMachine::long_line},
    {'F', &PickleMachine::float_line},
    {'K', &PickleMachine::byte_int},
    {'M', &PickleMachine::short_int},
    {'J', &PickleMachine::plain_int},
    {'\x8a', &PickleMachine::long_int},
    {'\x8b', &PickleMachine::longer_int},
    {'G', &PickleMachine::binary_float},
    {'V', &PickleMachine::text_line},
    {'S', &PickleMachine::quoted_line},
    {'X', &PickleMachine::sized_text<uint32_t>},
    {'\x8c', &PickleMachine::sized_text<uint8_t>},
    {'\x8d', &PickleMachine::sized_text<uint64_t>},
    {'B', &PickleMachine::sized_bytes<uint32_t>},
    {'C', &PickleMachine::sized_bytes<uint8_t>},
    {'\x8e', &PickleMachine::sized_bytes<uint64_t>},
    {'T', &PickleMachine::sized_string<uint32_t>},
    {'U', &PickleMachine::sized_string<uint8_t>},
    {'\x96', &PickleMachine::byte_array},
    {']', &PickleMachine::empty_list},
    {'}', &PickleMachine::empty_dict},
    {'\x8f', &PickleMachine::empty_set},
    {')', &PickleMachine::empty_tuple},
    {'l', &PickleMachine::marked_list},
    {'d', &PickleMachine::marked_dict},
    {'t', &PickleMachine::marked_tuple},
    {'\x91', &PickleMachine::marked_frozen_set},
    {'\x85', &PickleMachine::short_tuple<1>},
    {'\x86', &PickleMachine::short_tuple<2>},
    {'\x87', &PickleMachine::short_tuple<3>},
    {'a', &PickleMachine::append},
    {'e', &PickleMachine::appends},
    {'\x90', &PickleMachine::add_items},
    {'s', &PickleMachine::set_item},
    {'u', &PickleMachine::set_items},
    {'h', &PickleMachine::get<uint8_t>},
    {'j', &PickleMachine::get<uint32_t>},
    {'g', &PickleMachine::get_line},
    {'q', &PickleMachine::put<uint8_t>},
    {'r', &PickleMachine::put<uint32_t>},
    {'p', &PickleMachine::put_line},
    {'\x94', &PickleMachine::memoize},
    {'c', &PickleMachine::global},
    {'\x93', &PickleMachine::stack_global},
    {'i', &PickleMachine::instance},
    {'o', &PickleMachine::object},
    {'R', &PickleMachine::reduce},
    {'\x81', &PickleMachine::new_object},
    {'\x92', &PickleMachine::new_object_with_keywords},
    {'b', &PickleMachine::build},
    {'Q', &PickleMachine::persistent_id},
    // Text ids of persistent objects, extension codes, buffers outside the file.
    {'P', &PickleMachine::unsupported},
    {'\x82', &PickleMachine::unsupported},
    {'\x83', &PickleMachine::unsupported},
    {'\x84', &PickleMachine::unsupported},
    {'\x97', &PickleMachine::unsupported},
    {'\x98', &PickleMachine::unsupported},
};

PickleMachine::Step PickleMachine::step_of(unsigned char code) {
  static const auto kSteps = [] {
    std::array<Step, 256> steps{};
    for (const Opcode& opcode : kOpcodes) steps[static_cast<unsigned char>(opcode.code)] = opcode.step;
    return steps;
  }();
  return kSteps[code];
}

void PickleMachine::run() {
  while (!stopped_) {
    const auto code = take_number<unsigned char>();
    const Step step = step_of(code);
    if (step == nullptr) fail("unknown pickle opcode " + std::to_string(code) + ". Is it a torch file at all?");
    (this->*step)();
  }
}

}  // namespace accelerate::detail
