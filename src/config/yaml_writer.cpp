#include <fmt/format.h>

#include <cmath>

#include "config/python_text.h"
#include "config/yaml_scalar.h"

// The layout of PyYAML's emitter: where lines break, which quotes a text gets and how far continuation lines are indented
// follow its rules, for files of either package are compared by their bytes.

namespace accelerate::detail {
namespace {

constexpr int kBestWidth = 80;
constexpr int kIndentStep = 2;
/// Longer keys are written with a question mark. PyYAML counts the five characters of the tag `!!str` too.
constexpr size_t kLongestSimpleKey = 127 - 5;

constexpr std::u32string_view kBreaks = U"\n\x85\u2028\u2029";
constexpr std::u32string_view kBlanks = std::u32string_view(U"\0 \t\r\n\x85\u2028\u2029", 8);

bool among(std::u32string_view set, char32_t point) { return set.find(point) != std::u32string_view::npos; }
bool is_break(char32_t point) { return among(kBreaks, point); }
bool is_printable_ascii(char32_t point) { return point >= 0x20 && point <= 0x7e; }

/// In which styles a text may be written.
struct TextStyles {
  bool plain = true;
  bool single_quoted = true;
  bool multiline = false;
};

bool has_indicator(std::u32string_view text) {
  if (text.starts_with(U"---") || text.starts_with(U"...")) return true;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool blank_follows = i + 1 >= text.size() || among(kBlanks, text[i + 1]);
    const bool blank_before = i == 0 || among(kBlanks, text[i - 1]);
    if (i == 0 && among(U"#,[]{}&*!|>'\"%@`", text[i])) return true;
    if (i == 0 && among(U"?-", text[i]) && blank_follows) return true;
    if (text[i] == ':' && blank_follows) return true;
    if (text[i] == '#' && blank_before) return true;
  }
  return false;
}

TextStyles styles_of(std::u32string_view text) {
  TextStyles styles;
  if (text.empty()) return styles;
  const auto edge = [](char32_t point) { return point == ' ' || is_break(point); };
  bool special = false, space_before_break = false, space_after_break = false;
  for (size_t i = 0; i < text.size(); ++i) {
    styles.multiline = styles.multiline || is_break(text[i]);
    special = special || (text[i] != '\n' && !is_printable_ascii(text[i]));
    if (i == 0) continue;
    space_before_break = space_before_break || (text[i - 1] == ' ' && is_break(text[i]));
    space_after_break = space_after_break || (is_break(text[i - 1]) && text[i] == ' ');
  }
  styles.single_quoted = !special && !space_before_break && !space_after_break;
  styles.plain = styles.single_quoted && !styles.multiline && !edge(text.front()) && !edge(text.back()) && !has_indicator(text);
  return styles;
}

std::string escaped(char32_t point) {
  constexpr std::u32string_view kNamed = std::u32string_view(U"\0\a\b\t\n\v\f\r\x1b\"\\\x85\xa0\u2028\u2029", 15);
  constexpr std::string_view kNames = "0abtnvfre\"\\N_LP";
  const size_t named = kNamed.find(point);
  const auto code = static_cast<uint32_t>(point);
  if (named != std::u32string_view::npos) return std::string("\\") + kNames[named];
  if (code <= 0xff) return fmt::format("\\x{:02X}", code);
  return code <= 0xffff ? fmt::format("\\u{:04X}", code) : fmt::format("\\U{:08X}", code);
}

std::string number_text(double number) {
  if (std::isnan(number)) return ".nan";
  if (std::isinf(number)) return number > 0 ? ".inf" : "-.inf";
  std::string text = python_number(number);
  const size_t e = text.find('e');
  if (e != std::string::npos && text.find('.') == std::string::npos) text.insert(e, ".0");  // else it would read as text
  return text;
}

class YamlWriter {
 public:
  std::string document(const nlohmann::json& value) {
    write_node(value, false);
    write_indent();
    return std::move(out_);
  }

 private:
  void put(std::string_view ascii) {
    out_ += ascii;
    column_ += static_cast<int>(ascii.size());
  }
  void put(std::u32string_view ascii) { put(std::string(ascii.begin(), ascii.end())); }

  void write_indicator(std::string_view indicator, bool needs_blank, bool leaves_blank = false, bool keeps_indention = false) {
    if (needs_blank && !blank_) put(" ");
    put(indicator);
    blank_ = leaves_blank;
    at_indention_ = at_indention_ && keeps_indention;
  }

  void write_line_break() {
    out_ += '\n';
    column_ = 0;
    blank_ = at_indention_ = true;
  }

  void write_indent() {
    const int indent = std::max(indent_, 0);
    if (!at_indention_ || column_ > indent || (column_ == indent && !blank_)) write_line_break();
    if (column_ >= indent) return;
    blank_ = true;
    put(std::string(static_cast<size_t>(indent - column_), ' '));
  }

  void write_node(const nlohmann::json& value, bool in_mapping) {
    if (value.is_object()) return write_mapping(value);
    if (value.is_array()) return write_list(value, in_mapping);
    if (value.is_string()) return write_text(value.get_ref<const std::string&>(), false);
    const std::string text = value.is_number_float() ? number_text(value.get<double>()) : value.dump();
    write_plain(code_points(text), false);
  }

  void write_mapping(const nlohmann::json& mapping) {
    if (mapping.empty()) return write_empty("{", "}");
    const int outer = std::exchange(indent_, indent_ < 0 ? 0 : indent_ + kIndentStep);
    for (const auto& item : mapping.items()) {
      write_indent();
      const std::u32string key = code_points(item.key());
      const bool simple = !key.empty() && key.size() <= kLongestSimpleKey && !styles_of(key).multiline;
      if (!simple) write_indicator("?", true, false, true);
      write_text(item.key(), simple);
      if (!simple) write_indent();
      write_indicator(":", !simple, false, !simple);
      write_node(item.value(), true);
    }
    indent_ = outer;
  }

  void write_list(const nlohmann::json& list, bool in_mapping) {
    if (list.empty()) return write_empty("[", "]");
    const int deeper = indent_ < 0 ? 0 : indent_ + (in_mapping && !at_indention_ ? 0 : kIndentStep);
    const int outer = std::exchange(indent_, deeper);
    for (const auto& item : list) {
      write_indent();
      write_indicator("-", true, false, true);
      write_node(item, false);
    }
    indent_ = outer;
  }

  void write_empty(std::string_view open, std::string_view close) {
    write_indicator(open, true, true);
    write_indicator(close, false);
  }

  void write_text(const std::string& text, bool is_key) {
    const std::u32string points = code_points(text);
    const TextStyles styles = styles_of(points);
    const bool plain = styles.plain && yaml_kind(text) == YamlKind::text;
    if (plain) return write_plain(points, is_key);
    styles.single_quoted ? write_single_quoted(points, is_key) : write_double_quoted(points, is_key);
  }

  /// A scalar's further lines are indented by one step more than what it belongs to.
  void write_continuation_indent() {
    const int outer = std::exchange(indent_, std::max(indent_ + kIndentStep, kIndentStep));
    write_indent();
    indent_ = outer;
  }

  /// True where a lone space past the last column may become the end of the line.
  bool folds_here(size_t spaces, bool is_key) const { return spaces == 1 && column_ > kBestWidth && !is_key; }

  void write_plain(std::u32string_view text, bool is_key) {
    if (!blank_) put(" ");
    blank_ = at_indention_ = false;
    for (size_t at = 0; at < text.size();) {
      const bool spaces = text[at] == ' ';
      const size_t end = std::min(spaces ? text.find_first_not_of(U' ', at) : text.find(U' ', at), text.size());
      if (spaces && folds_here(end - at, is_key)) {
        write_continuation_indent();
        blank_ = at_indention_ = false;
      } else {
        put(text.substr(at, end - at));
      }
      at = end;
    }
  }

  void write_single_quoted(std::u32string_view text, bool is_key) {
    write_indicator("'", true);
    for (size_t at = 0; at < text.size();) {
      const char32_t first = text[at];
      size_t end = std::min(text.find_first_of(U" \n'", at), text.size());
      if (first == ' ') end = std::min(text.find_first_not_of(U' ', at), text.size());
      if (first == '\n') end = std::min(text.find_first_not_of(U'\n', at), text.size());
      if (first == '\'') end = at + 1;
      const auto run = text.substr(at, end - at);
      if (first == '\n') {
        for (size_t breaks = 0; breaks < run.size() + 1; ++breaks) write_line_break();
        write_continuation_indent();
      } else if (first == ' ' && folds_here(run.size(), is_key) && at != 0 && end != text.size()) {
        write_continuation_indent();
      } else {
        first == '\'' ? put("''") : put(run);
      }
      at = end;
    }
    write_indicator("'", false);
  }

  void write_double_quoted(std::u32string_view text, bool is_key) {
    write_indicator("\"", true);
    size_t start = 0;  // of what is still to be written
    for (size_t end = 0; end <= text.size(); ++end) {
      const bool last = end == text.size();
      if (last || among(U"\"\\", text[end]) || !is_printable_ascii(text[end])) {
        put(text.substr(start, end - start));
        start = end;
        if (!last) {
          put(escaped(text[end]));
          start = end + 1;
        }
      }
      const bool may_fold = end > 0 && end + 1 < text.size() && (text[end] == ' ' || start >= end) && !is_key;
      if (!may_fold || column_ + static_cast<int>(end) - static_cast<int>(start) <= kBestWidth) continue;
      if (start < end) {
        put(text.substr(start, end - start));
        start = end;
      }
      put("\\");
      write_continuation_indent();
      blank_ = at_indention_ = false;
      if (text[start] == ' ') put("\\");
    }
    write_indicator("\"", false);
  }

  std::string out_;
  int column_ = 0;
  int indent_ = -1;  // before the first block
  bool blank_ = true, at_indention_ = true;
};

}  // namespace

std::string python_yaml(const nlohmann::json& value) { return YamlWriter().document(value); }

}  // namespace accelerate::detail
