#include "checkpoint/value_file.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/file.h"
#include "support/together.h"

namespace {

using accelerate::StateDict;
using accelerate::Value;

/// Writes a value, and reads the file as Python would find it.
class WrittenValue {
 public:
  explicit WrittenValue(const Value& value) {
    accelerate::detail::OutputFile output((folder_ / "value.pt").string());
    accelerate::detail::write_value(output, "value", value);
    output.commit();
    source_ = std::make_unique<accelerate::detail::InputFile>((folder_ / "value.pt").string());
    file_ = std::make_unique<accelerate::detail::TorchFile>(*source_);
  }
  const accelerate::detail::PickleNode& root() const { return file_->root(); }
  Value read() const { return accelerate::detail::read_value(*source_); }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<accelerate::detail::InputFile> source_;
  std::unique_ptr<accelerate::detail::TorchFile> file_;
};

TEST(ValueFile, PlainDataComesBackWithItsKinds) {
  StateDict numbered = {{"0", 1}, {"7", "x"}};
  numbered.set_numbered(true);
  const Value value = StateDict{{"none", nullptr},
                                {"truth", true},
                                {"number", -3},
                                {"real", 0.5},
                                {"text", "a b"},
                                {"list", Value::List{1, Value::List{}}},
                                {"tuple", Value::Tuple{1, "one"}},
                                {"tensor", torch::arange(3)},
                                {"numbered", numbered}};
  const WrittenValue written(value);
  EXPECT_EQ(written.read(), value);
  EXPECT_TRUE(written.read()["numbered"].as<StateDict>().is_numbered());
  EXPECT_TRUE(written.root().find("numbered")->dict().items.front().first->is(accelerate::detail::PickleKind::kInt));
}

TEST(ValueFile, MilestonesAreACounterAsPythonsSchedulerNeedsThem) {
  torch::optim::SGD sgd({torch::zeros({1}).requires_grad_()}, 0.1);
  const accelerate::MultiStepLR scheduler(sgd, {.milestones = {3, 3, 8}});
  const WrittenValue written(scheduler.state_dict());
  EXPECT_EQ(written.root().find("milestones")->kind, accelerate::detail::PickleKind::kCounter);
  EXPECT_EQ(written.root().kind, accelerate::detail::PickleKind::kDict);
  EXPECT_EQ(written.read()["milestones"]["3"], Value(2));
}

TEST(ValueFile, AViewBringsTheMemoryItIsAViewOfOnce) {
  const auto whole = torch::arange(6.0);
  const WrittenValue written(StateDict{{"rows", whole.view({2, 3})}, {"tail", whole.slice(0, 4)}});
  const Value read = written.read();
  const auto rows = read["rows"].get<at::Tensor>(), tail = read["tail"].get<at::Tensor>();
  EXPECT_EQ(rows.storage().unsafeGetStorageImpl(), tail.storage().unsafeGetStorageImpl());
  EXPECT_TRUE(torch::equal(rows[1].slice(0, 1), tail));
}

}  // namespace
