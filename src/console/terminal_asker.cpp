#include "console/terminal_asker.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include <accelerate/core/error.h>
#include "console/screen.h"
#include "console/text_columns.h"

namespace accelerate::detail {
namespace {

/// How long to wait after an escape for the rest of an arrow key.
constexpr int kEscapeMilliseconds = 50;

/// Puts the terminal into raw mode without echo, and queues signals, until the scope ends.
class KeyMode {
 public:
  explicit KeyMode(int input) : input_(input) {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH}) ::sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
    signals_ = ::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    known_ = ::tcgetattr(input_, &saved_) == 0;
    enter();
  }
  ~KeyMode() {
    leave();
    if (signals_ >= 0) ::close(signals_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;

  void enter() {
    if (!known_) return;
    termios keys = saved_;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
    keys.c_cc[VMIN] = 1;
    keys.c_cc[VTIME] = 0;
    ::tcsetattr(input_, TCSADRAIN, &keys);
  }
  void leave() {
    if (known_) ::tcsetattr(input_, TCSADRAIN, &saved_);
  }
  int signals() const { return signals_; }

 private:
  int input_, signals_ = -1;
  bool known_ = false;
  termios saved_ = {};
  sigset_t before_ = {};
};

enum class Key { none, up, down, first, last, enter, digit, interrupt, suspend, end, resized };

struct KeyPress {
  Key key = Key::none;
  int digit = 0;
  int signal = 0;
};

/// Waits for the next key or signal.
class KeyReader {
 public:
  KeyReader(int input, int signals) : input_(input), signals_(signals) {}

  KeyPress next() {
    std::array<pollfd, 2> ready = {pollfd{input_, POLLIN, 0}, pollfd{signals_, POLLIN, 0}};
    if (::poll(ready.data(), ready.size(), -1) < 0) return {};
    if (ready[1].revents & POLLIN) return read_signal();
    const auto byte = read_byte();
    if (!byte) return {.key = Key::end};
    if (*byte == '\x1b') return {.key = read_escape()};
    if (*byte >= '0' && *byte <= '9') return {.key = Key::digit, .digit = *byte - '0'};
    return {.key = key_of(*byte), .signal = *byte == '\x1c' ? SIGQUIT : SIGINT};
  }

 private:
  static Key key_of(char byte) {
    switch (byte) {
      case '\r':
      case '\n':
        return Key::enter;
      case 'k':
      case '\x10':  // Ctrl-P
        return Key::up;
      case 'j':
      case '\x0e':  // Ctrl-N
      case '\t':
        return Key::down;
      case '\x03':
      case '\x1c':
        return Key::interrupt;
      case '\x04':
        return Key::end;
      case '\x1a':
        return Key::suspend;
      default:
        return Key::none;
    }
  }

  std::optional<char> read_byte() {
    char byte = 0;
    ssize_t got = 0;
    do {
      got = ::read(input_, &byte, 1);
    } while (got < 0 && errno == EINTR);
    return got == 1 ? std::optional(byte) : std::nullopt;
  }

  std::optional<char> read_soon() {
    pollfd ready{input_, POLLIN, 0};
    return ::poll(&ready, 1, kEscapeMilliseconds) == 1 ? read_byte() : std::nullopt;
  }

  /// `ESC [ A` or `ESC O A`; a lone escape, and sequences of other keys, mean nothing.
  Key read_escape() {
    const auto kind = read_soon();
    if (kind != '[' && kind != 'O') return Key::none;
    char first_parameter = 0;
    auto last = read_soon();
    for (; last && (*last == ';' || (*last >= '0' && *last <= '9')); last = read_soon()) {
      if (first_parameter == 0) first_parameter = *last;
    }
    if (!last) return Key::none;
    if (*last == '~')
      return first_parameter == '1' || first_parameter == '7'   ? Key::first
             : first_parameter == '4' || first_parameter == '8' ? Key::last
                                                                : Key::none;
    return *last == 'A' ? Key::up : *last == 'B' ? Key::down : *last == 'H' ? Key::first : *last == 'F' ? Key::last : Key::none;
  }

  KeyPress read_signal() {
    signalfd_siginfo info{};
    if (::read(signals_, &info, sizeof info) != sizeof info) return {};
    if (info.ssi_signo == SIGWINCH) return {.key = Key::resized};
    return {.key = Key::interrupt, .signal = static_cast<int>(info.ssi_signo)};
  }

  int input_, signals_;
};

/// Columns and rows of a terminal.
std::pair<int, int> window_size(int output) {
  winsize window{};
  if (::ioctl(output, TIOCGWINSZ, &window) != 0 || window.ws_col == 0) return {80, 24};
  return {window.ws_col, std::max<int>(window.ws_row, 2)};
}

/// `text` with line breaks between words instead of wherever the terminal ends.
std::string wrap_words(const std::string& text, int columns) {
  std::string out;
  int column = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    const int width = columns_of(word);
    if (column > 0 && column + 1 + width >= columns) {
      out += '\n';
      column = 0;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width;
    at = end + 1;
  }
  return text.ends_with(' ') ? out + ' ' : out;
}

/// The rows of a menu on the screen. The cursor rests at the start of the first of them.
class MenuView {
 public:
  MenuView(const MenuQuestion& question, int output, bool colours) : question_(question), output_(output), colours_(colours) {}

  void draw(size_t position) {
    const auto [columns, rows] = window_size(output_);
    std::string out = erased();
    // The last column stays free: some terminals wrap when it is written.
    const int width = std::max(columns - 1, 1);
    const size_t shown = std::min(question_.options.size(), static_cast<size_t>(std::max(rows - 2, 1)));
    first_ = std::min(first_, position);
    first_ = std::max(first_, position + 1 >= shown ? position + 1 - shown : 0);
    first_ = std::min(first_, question_.options.size() - shown);
    for (size_t i = first_; i < first_ + shown; ++i) out += row(i, position, width);
    out += row_text(hint(shown), width);
    out += fmt::format("\r\x1b[{}A", shown);
    write(out);
  }

  void finish(const std::string& choice) { write(erased() + row_text("  " + choice, window_size(output_).first - 1) + "\n"); }
  void clear() { write(erased()); }

 private:
  std::string hint(size_t shown) const {
    const std::string keys = "(arrow keys or a number, then Enter)";
    if (shown == question_.options.size()) return keys;
    return fmt::format("({}-{} of {}; arrow keys, then Enter)", first_, first_ + shown - 1, question_.options.size());
  }

  std::string row(size_t index, size_t position, int width) {
    const bool chosen = index == position;
    const std::string text = row_text(fmt::format("{} {}  {}", chosen ? ">" : " ", index, question_.options[index]), width);
    return (chosen && colours_ ? "\x1b[32m" + text + "\x1b[0m" : text) + "\n";
  }

  std::string row_text(const std::string& text, int width) { return fit_columns(text, std::max(width, 1)); }

  /// Erases from the first row on. In a terminal that became narrower the rows have wrapped, but they are below too.
  std::string erased() const { return "\r\x1b[J"; }

  void write(const std::string& bytes) {
    if (!write_all(output_, bytes)) throw ConfigError("Cannot write the questions to the terminal.");
  }

  const MenuQuestion& question_;
  int output_;
  bool colours_;
  size_t first_ = 0;
};

/// The position after a key is pressed at `position`.
size_t moved(size_t position, const KeyPress& press, size_t last) {
  switch (press.key) {
    case Key::up:
      return position > 0 ? position - 1 : 0;
    case Key::down:
      return std::min(position + 1, last);
    case Key::first:
      return 0;
    case Key::last:
      return last;
    case Key::digit:
      return static_cast<size_t>(press.digit) <= last ? static_cast<size_t>(press.digit) : position;
    default:
      return position;
  }
}

}  // namespace

TerminalAsker::TerminalAsker(int input, int output, bool colours)
    : lines_(input, output, [output](const std::string& text) { return wrap_words(text, window_size(output).first); }),
      input_(input),
      output_(output),
      colours_(colours) {}

size_t TerminalAsker::choose(const MenuQuestion& question) {
  lines_.tell(question.text);
  KeyMode mode(input_);
  MenuView view(question, output_, colours_);
  KeyReader keys(input_, mode.signals());
  for (size_t position = question.fallback;;) {
    view.draw(position);
    const KeyPress press = keys.next();
    switch (press.key) {
      case Key::enter:
        view.finish(question.options[position]);
        return position;
      case Key::interrupt:
        view.clear();
        throw Interrupted(press.signal);
      case Key::end:
        view.clear();
        throw ConfigError("The input ended before '" + question.text + "' was answered. Nothing was written.");
      case Key::suspend:
        view.clear();
        mode.leave();
        ::raise(SIGTSTP);
        mode.enter();
        break;
      default:
        position = moved(position, press, question.options.size() - 1);
    }
  }
}

}  // namespace accelerate::detail
