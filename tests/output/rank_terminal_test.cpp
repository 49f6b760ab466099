#include "output/rank_terminal.h"

#include <gtest/gtest.h>

namespace accelerate {

using namespace detail;
namespace {

using Rows = std::vector<std::string>;

TEST(RankTerminal, ALineIsFinishedWhenTheCursorHasLeftIt) {
  RankTerminal terminal;
  terminal.feed("one\ntwo\nthr");
  EXPECT_EQ(terminal.take_finished(), (Rows{"one", "two"}));
  EXPECT_EQ(terminal.live(80), (Rows{"thr"}));
  terminal.feed("ee\n");
  EXPECT_EQ(terminal.take_finished(), (Rows{"three"}));
  EXPECT_EQ(terminal.live(80), (Rows{}));
}

TEST(RankTerminal, CarriageReturnWritesOver) {
  RankTerminal terminal;
  terminal.feed("10%\r 50%\rx");
  EXPECT_EQ(terminal.live(80), (Rows{"x50%"}));
}

TEST(RankTerminal, LinesAndTheRestOfTheScreenAreErased) {
  RankTerminal terminal;
  terminal.feed("hello\r\x1b[Kbye");
  EXPECT_EQ(terminal.live(80), (Rows{"bye"}));
  terminal.feed("\nnext\nlast\x1b[2A\r\x1b[2Cx\x1b[J");
  EXPECT_EQ(terminal.live(80), (Rows{"byx"}));
}

TEST(RankTerminal, BackspaceAndMovesToTheRightKeepWhatTheyPass) {
  RankTerminal terminal;
  terminal.feed("abcd\b\bX\r\x1b[CY");
  EXPECT_EQ(terminal.live(80), (Rows{"aYXd"}));
}

TEST(RankTerminal, AMoveToTheRightEndsAtTheLastColumn) {
  RankTerminal terminal(10);
  terminal.feed("\x1b[99999Cx");
  EXPECT_EQ(terminal.live(80), (Rows{std::string(9, ' ') + "x"}));
}

TEST(RankTerminal, SequencesAndCharactersMayBeCutAnywhere) {
  const std::string bytes = "\x1b[1;31mrot\x1b[0m \xe2\x96\x88\xe6\xbc\xa2 \x1b]0;title\a\x1b[?25l.\r\x1b[2Cx\nnext";
  RankTerminal whole;
  whole.feed(bytes);
  const Rows finished = whole.take_finished();
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    RankTerminal parts;
    parts.feed(std::string_view(bytes).substr(0, cut));
    parts.feed(std::string_view(bytes).substr(cut));
    EXPECT_EQ(parts.take_finished(), finished) << cut;
    EXPECT_EQ(parts.live(80), (Rows{"next"})) << cut;
  }
  EXPECT_EQ(plain_text(finished.at(0)), "rox \xe2\x96\x88\xe6\xbc\xa2 .");
}

TEST(RankTerminal, ColoursStayWithTheCharactersTheyWereWrittenWith) {
  RankTerminal terminal;
  terminal.feed("a\x1b[31mb\x1b[1mc\x1b[22;39md\x1b[38;5;200me\x1b[48;2;1;2;3mf\x1b[mg");
  EXPECT_EQ(terminal.live(80), (Rows{"a\x1b[0;31mb\x1b[0;1;31mc\x1b[0md\x1b[0;38;5;200me\x1b[0;38;5;200;48;2;1;2;3mf\x1b[0mg"}));
  // One that is still on at the end of the line must not colour what others write.
  terminal.feed("\r\x1b[K\x1b[32mgreen\nstill");
  EXPECT_EQ(terminal.take_finished(), (Rows{"\x1b[0;32mgreen\x1b[0m"}));
  EXPECT_EQ(terminal.live(80), (Rows{"\x1b[0;32mstill\x1b[0m"}));
}

TEST(RankTerminal, LiveRowsAreCutAtWholeCharacters) {
  RankTerminal terminal;
  terminal.feed("ab\xe6\xbc\xa2\xe6\xbc\xa2");
  EXPECT_EQ(terminal.live(5), (Rows{"ab\xe6\xbc\xa2"}));
  EXPECT_EQ(terminal.live(6), (Rows{"ab\xe6\xbc\xa2\xe6\xbc\xa2"}));
}

TEST(RankTerminal, HalfOfAWideCharacterIsNone) {
  RankTerminal left;
  left.feed("\xe6\xbc\xa2z\rx");
  EXPECT_EQ(left.live(80), (Rows{"x z"}));
  RankTerminal right;
  right.feed("\xe6\xbc\xa2z\r\x1b[Cx");
  EXPECT_EQ(right.live(80), (Rows{" xz"}));
}

TEST(RankTerminal, NestedBarsStayLiveHoweverTheirWritesAreCut) {
  RankTerminal terminal;
  terminal.feed("outer 0\n\rinner 0\x1b[A");
  EXPECT_EQ(terminal.take_finished(), (Rows{}));
  for (int i = 1; i < 4; ++i) {
    // As tqdm does it: each step is a write of its own, and the launcher may read after any of them.
    for (const std::string& step : {std::string("\n"), "\rinner " + std::to_string(i), std::string("\x1b[A")}) {
      terminal.feed(step);
      EXPECT_EQ(terminal.take_finished(), (Rows{}));
    }
    EXPECT_EQ(terminal.live(80), (Rows{"outer 0", "inner " + std::to_string(i)}));
  }
  terminal.finish();
  EXPECT_EQ(terminal.take_finished(), (Rows{"outer 0", "inner 3"}));
}

TEST(RankTerminal, EmptyLinesAreLines) {
  RankTerminal terminal;
  terminal.feed("a\n\nb\n");
  EXPECT_EQ(terminal.take_finished(), (Rows{"a", "", "b"}));
  terminal.finish();
  EXPECT_EQ(terminal.take_finished(), (Rows{}));
}

TEST(RankTerminal, RowsThatNeverEndAreBoundedAndLoseNothing) {
  RankTerminal terminal;
  size_t characters = 0;
  for (int i = 0; i < 100; ++i) terminal.feed(std::string(1000, 'x'));
  terminal.feed("\x1b[5A");  // from now on rows are kept back
  for (int i = 0; i < 1000; ++i) terminal.feed("y\n");
  EXPECT_LE(terminal.live(80).size(), 200u);
  terminal.finish();
  for (const std::string& row : terminal.take_finished()) {
    EXPECT_LE(row.size(), 16384u);
    characters += row.size();
  }
  // Moved up over five rows, of which the first is a piece of x again.
  EXPECT_GE(characters, 100u * 1000u - 16384u);
}

TEST(RankTerminal, BytesThatMeanNothingMoveNothing) {
  RankTerminal terminal;
  terminal.feed(std::string("a\0b\a\x7f", 5) + "\x1b[99;zc\x1b(Bd\x1bM\xff\xc3.");
  EXPECT_EQ(terminal.live(80), (Rows{"abcd\?\?."}));
}

TEST(RankTerminal, ASequenceThatIsBrokenOffSwallowsNothingAfterIt) {
  RankTerminal terminal;
  terminal.feed(
      "a\x1b]0;title\nb\x1bPtext\x18"
      "c\x1b_text\x1a"
      "d\x1b^text\x1b[31me\x1b[12\n");
  EXPECT_EQ(terminal.take_finished(), (Rows{"a", "bcd\x1b[0;31me\x1b[0m"}));
  terminal.feed("\x1b[m\x1b]" + std::string(1000, 'x') + "end");
  ASSERT_EQ(terminal.live(2000).size(), 1u);
  EXPECT_TRUE(terminal.live(2000)[0].ends_with("xend"));
  terminal.feed("\r\x1b[K\x1b]8;;link\x1b\\text\x1b]8;;\x1b\\");
  EXPECT_EQ(terminal.live(80), (Rows{"text"}));
}

TEST(PlainText, IsWhatALineLeavesOnTheScreen) {
  EXPECT_EQ(plain_text("10%\r20%\r100%"), "100%");
  EXPECT_EQ(plain_text("\x1b[1;31merror:\x1b[0m no"), "error: no");
}

}  // namespace
}  // namespace accelerate
