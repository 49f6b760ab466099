// The runner of `accelerate test` on checks that are made to fail. That its own checks can fail is shown by
// tests/checks/self_test_defects.py.
#include "self_test/check.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <torch/torch.h>

#include "support/together.h"

namespace {

using accelerate::Accelerator;
using accelerate::self_test::Check;
using accelerate::self_test::Findings;
using accelerate::self_test::Numbers;

// A stream that can be read back.
class Kept {
 public:
  Kept() : file_(std::tmpfile()) {}
  ~Kept() { std::fclose(file_); }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::string text;
    std::rewind(file_);
    for (int character = 0; (character = std::fgetc(file_)) != EOF;) text += static_cast<char>(character);
    return text;
  }

 private:
  std::FILE* file_;
};

void nothing_wrong(Accelerator&, Findings& findings) { findings.equal(1, 1, "one is one"); }
void wrong_on_the_last_process(Accelerator& accelerator, Findings& findings) {
  findings.equal(accelerator.is_last_process() ? 2 : 1, 1, "one is one");
}
void thrown(Accelerator&, Findings&) { throw accelerate::UsageError("It was asked for too much."); }

class TogetherSelfTest : public Together {};

TEST_F(TogetherSelfTest, AllChecksThatHoldAreShownByTheMainProcess) {
  const Kept progress, problems;
  const Check checks[] = {{"this", nothing_wrong}, {"that", nothing_wrong}};
  EXPECT_EQ(run_checks(checks, accelerator(), {progress.file(), problems.file()}), 0);
  EXPECT_EQ(progress.text(), rank() == 0 ? "checking this ... ok\nchecking that ... ok\n" : "");
  EXPECT_EQ(problems.text(), "");
}

TEST_F(TogetherSelfTest, AProblemOfOneProcessIsToldByItAndEndsTheRunOfAll) {
  const Kept progress, problems;
  const Check checks[] = {{"this", nothing_wrong}, {"that", wrong_on_the_last_process}, {"more", nothing_wrong}};
  EXPECT_EQ(run_checks(checks, accelerator(), {progress.file(), problems.file()}), 1);
  EXPECT_EQ(progress.text(), rank() == 0 ? "checking this ... ok\nchecking that ... FAILED\n" : "");
  const std::string place = std::to_string(rank()) + " of " + std::to_string(world());
  EXPECT_EQ(problems.text(), rank() == world() - 1 ? "The check of that failed on rank " + place +
                                                         ": 'one is one' does not hold: expected 1, found 2.\n"
                                                   : "");
}

TEST_F(TogetherSelfTest, AnExceptionIsToldAndThrownOn) {
  const Kept progress, problems;
  const Check checks[] = {{"this", thrown}, {"more", nothing_wrong}};
  EXPECT_THROW(run_checks(checks, accelerator(), {progress.file(), problems.file()}), accelerate::UsageError);
  EXPECT_EQ(progress.text(), rank() == 0 ? "checking this ... FAILED\n" : "");
  EXPECT_NE(problems.text().find("The check of this failed on rank " + std::to_string(rank())), std::string::npos);
  EXPECT_NE(problems.text().find("It was asked for too much."), std::string::npos);
}

TEST(SelfTestFindings, TellValuesOfEveryKind) {
  Findings findings;
  findings.equal(Numbers{1, 2}, Numbers{1, 2}, "same");
  findings.equal(torch::ones({2}), torch::ones({2}), "same");
  findings.near(1.0, 1.05, 0.1, "same");
  findings.expect(true, "same");
  EXPECT_TRUE(findings.problems().empty());
  findings.expect(false, "water is dry");
  findings.equal(Numbers{1, 2}, Numbers{1, 3}, "lists agree");
  findings.equal(accelerate::self_test::range(0, 100), Numbers{}, "long lists agree");
  findings.equal(std::vector<std::string>{"a"}, {"b"}, "texts agree");
  findings.equal(torch::ones({2}), torch::ones({2}, torch::kLong), "dtypes agree");
  findings.equal(torch::ones({2}), torch::ones({1, 2}), "shapes agree");
  findings.near(NAN, 0, 1, "no number is near");
  const auto& problems = findings.problems();
  ASSERT_EQ(problems.size(), 7u);
  EXPECT_EQ(problems[0], "'water is dry' does not hold.");
  EXPECT_EQ(problems[1], "'lists agree' does not hold: expected [1, 3], found [1, 2].");
  EXPECT_NE(problems[2].find("23, ... 100 in all]"), std::string::npos) << problems[2];
  EXPECT_EQ(problems[3], "'texts agree' does not hold: expected ['b'], found ['a'].");
  EXPECT_NE(problems[4].find("expected Long of shape [2]: [1, 1], found Float of shape [2]: [1, 1]"), std::string::npos)
      << problems[4];
  EXPECT_NE(problems[5].find("expected Float of shape [1, 2]"), std::string::npos) << problems[5];
  EXPECT_NE(problems[6].find("expected 0 within 1, found nan"), std::string::npos) << problems[6];
}

}  // namespace
