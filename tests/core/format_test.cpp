#include <accelerate/core/format.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <vector>

#include <accelerate/core/error.h>

namespace {

namespace colours {
enum class Colour { red, green };
[[maybe_unused]] std::string_view to_string(Colour colour) { return colour == Colour::red ? "red" : "green"; }
struct Point {
  int x, y;
};
[[maybe_unused]] std::string to_string(const Point& point) { return std::to_string(point.x) + "," + std::to_string(point.y); }
}  // namespace colours

enum class Nameless { one };

static_assert(accelerate::Formattable<colours::Colour> && accelerate::Formattable<colours::Point>);
static_assert(accelerate::Formattable<std::filesystem::path> && accelerate::Formattable<char[4]>);
static_assert(!accelerate::Formattable<Nameless> && !accelerate::Formattable<std::vector<int>>);
static_assert(!accelerate::Formattable<wchar_t> && !accelerate::Formattable<int*>);

std::string format_error_of(std::string_view pattern, std::span<const accelerate::FormatArgument> arguments) {
  try {
    return "no error, but: " + accelerate::format_arguments(pattern, arguments);
  } catch (const accelerate::UsageError& error) {
    return error.what();
  }
}

TEST(Format, TextWithoutArgumentsIsTakenAsItIs) {
  EXPECT_EQ(accelerate::format("100 % {of} {} it }{"), "100 % {of} {} it }{");
  EXPECT_EQ(accelerate::format(""), "");
}

TEST(Format, EveryKindOfNumberPrints) {
  EXPECT_EQ(accelerate::format("{} {} {}", true, 'x', false), "true x false");
  EXPECT_EQ(accelerate::format("{} {}", std::numeric_limits<int64_t>::min(), std::numeric_limits<uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
  EXPECT_EQ(accelerate::format("{} {} {}", int8_t{-5}, uint8_t{65}, short{7}), "-5 65 7");
  EXPECT_EQ(accelerate::format("{} {} {} {}", 1LL, 2ULL, 3L, size_t{4}), "1 2 3 4");
  EXPECT_EQ(accelerate::format("{:.3f} {:.2e} {}", 2.0 / 3, 12345.678, 0.1), "0.667 1.23e+04 0.1");
}

TEST(Format, AFloatPrintsAsItWasWritten) { EXPECT_EQ(accelerate::format("{} {}", 0.1f, 0.1L), "0.1 0.1"); }

TEST(Format, EveryKindOfTextPrints) {
  const std::string text = "string";
  const char* pointer = "pointer";
  EXPECT_EQ(accelerate::format("{} {} {} {}", text, pointer, "array", std::string_view("view")), "string pointer array view");
  EXPECT_EQ(accelerate::format("{}", std::filesystem::path("/a") / "b c"), "/a/b c");
  EXPECT_EQ(accelerate::format("{:>8}|{:<4}|", text, "ab"), "  string|ab  |");
}

TEST(Format, EnumerationsAndClassesPrintByTheirToString) {
  EXPECT_EQ(accelerate::format("{} at {}", colours::Colour::green, colours::Point{3, 4}), "green at 3,4");
  EXPECT_EQ(accelerate::format("{:>6}", colours::Colour::red), "   red");
}

TEST(Format, PlacesMayBeNumberedAndWidthsGiven) {
  EXPECT_EQ(accelerate::format("{1} {0} {{}} {2:{3}}", "a", "b", 7, 4), "b a {}    7");
}

TEST(Format, BracesInAnArgumentAreText) { EXPECT_EQ(accelerate::format("{}", "{} {0}"), "{} {0}"); }

TEST(Format, ABadPatternIsAUsageErrorThatShowsIt) {
  for (std::string pattern : {"{} and {}", "{:.3d}", "{:?!}", "{", "}", "{0", "{name}", "{:.2f}"}) {
    const std::string error = format_error_of(pattern, std::array{accelerate::FormatArgument("x")});
    EXPECT_NE(error.find("the pattern \"" + pattern + "\" does not match its 1 argument: "), std::string::npos) << error;
  }
  const std::string error = format_error_of("{} {} {}", std::array<accelerate::FormatArgument, 2>{1, 2});
  EXPECT_NE(error.find("does not match its 2 arguments: argument not found"), std::string::npos) << error;
}

TEST(Format, APatternThatTheProgramMakesIsCheckedWhenItRuns) {
  const std::string made = std::string("{} of ") + "{}";
  EXPECT_EQ(accelerate::format(accelerate::runtime_format(made), 1, 2), "1 of 2");
  EXPECT_THROW(accelerate::format(accelerate::runtime_format(made), 1), accelerate::UsageError);
  static constexpr std::string_view kKnown = "{1} of {0}";
  EXPECT_EQ(accelerate::format(kKnown, 1, 2), "2 of 1");
}

/// Why the compiler refuses a pattern for one value; empty: it does not.
std::string refusal_of(std::string_view pattern, accelerate::detail::FormatKind kind) {
  bool used = false;
  try {
    accelerate::detail::PatternChecker(pattern, &kind, 1).check(&used);
  } catch (const char* message) {
    return message;
  }
  return "";
}

struct FormatCase {
  accelerate::detail::FormatKind kind;
  accelerate::FormatArgument value;
  // A sign before a bool, a char or an unsigned integer is left to fmt.
  bool exact;
};

TEST(Format, TheCompilerRefusesWhatFmtRefusesAndNothingThatWorks) {
  using accelerate::detail::FormatKind;
  const FormatCase cases[] = {{FormatKind::boolean, true, false}, {FormatKind::character, 'x', false},
                              {FormatKind::integer, 7u, false},   {FormatKind::integer, 7, true},
                              {FormatKind::real, 1.5f, true},     {FormatKind::real, 1.5, true},
                              {FormatKind::text, "text", true}};
  const std::string types = "aAbBcdeEfFgGosxXpq%!";
  const auto compare = [](const FormatCase& each, const std::string& pattern) {
    const auto error = format_error_of(pattern, {&each.value, 1});
    const bool works = error.starts_with("no error"), taken = refusal_of(pattern, each.kind).empty();
    EXPECT_TRUE(works ? taken : !each.exact || !taken) << pattern << " for kind " << static_cast<int>(each.kind) << ": " << error;
  };
  for (const auto& each : cases) {
    for (std::string start : {"{:", "{:<", "{:*>", "{:\u00e9^", "{:{<"}) {
      for (const char* flags : {"", "#", "0", "#0", "+", "+#0"}) {
        for (const char* numbers : {"", "8", ".2", "8.2", ".", "8."}) {
          compare(each, start + flags + numbers + "}");
          for (const char type : types) compare(each, start + flags + numbers + type + "}");
        }
      }
    }
  }
}

TEST(Format, TheCompilerSaysWhatIsWrongWithAPattern) {
  const auto of_integer = [](std::string_view pattern) { return refusal_of(pattern, accelerate::detail::FormatKind::integer); };
  EXPECT_EQ(of_integer("{} of {}"), "the format string has more {} than arguments");
  EXPECT_EQ(of_integer("{1}"), "the format string has more {} than arguments");
  EXPECT_EQ(of_integer("none"), "the format string has fewer {} than arguments");
  EXPECT_EQ(of_integer("{{}}"), "the format string has fewer {} than arguments");
  EXPECT_EQ(of_integer("{} {"), "unmatched { in the format string: write {{ for a literal brace");
  EXPECT_EQ(of_integer("{:5"), "unmatched { in the format string: write {{ for a literal brace");
  EXPECT_EQ(of_integer("{} }"), "unmatched } in the format string: write }} for a literal brace");
  EXPECT_EQ(of_integer("{name}"), "a replacement field is {}, {0} or {:spec}: write {{ and }} for literal braces");
  EXPECT_EQ(of_integer("{0} {}"), "cannot mix automatic ({}) and manual ({0}) argument indexing");
  EXPECT_EQ(of_integer("{:{}}"), "the format string has more {} than arguments");
  EXPECT_EQ(of_integer("{0:{0}} {0}"), "");
  EXPECT_EQ(of_integer("100 %: {:>8d}{{}}"), "");
}

TEST(Format, ANullPointerIsAUsageErrorAndNotACrash) {
  const char* nothing = nullptr;
  EXPECT_THROW(accelerate::format("{}", nothing), accelerate::UsageError);
}

TEST(Format, AnArgumentOutlivesItsSource) {
  std::string source(100, 'a');
  const accelerate::FormatArgument argument(source);
  source.assign(100, 'b');
  EXPECT_EQ(accelerate::format_arguments("{}", {&argument, 1}), std::string(100, 'a'));
}

}  // namespace
