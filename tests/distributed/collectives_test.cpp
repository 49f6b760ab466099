#include <torch/torch.h>

#include <deque>

#include "support/error_text.h"
#include "support/together.h"
#include "support/written_bytes.h"

namespace {

using accelerate::DistributedError;
using accelerate::PadOptions;
using accelerate::Reduction;
using accelerate::StateDict;
using accelerate::UsageError;
using accelerate::Value;
using accelerate::testing::message_of;

struct Sentence {
  torch::Tensor tokens, length;
  std::map<std::string, std::vector<torch::Tensor>> extra;
};

struct Batch {
  std::array<torch::Tensor, 2> pair;
  std::optional<Sentence> sentence;
  std::tuple<torch::Tensor, std::pair<torch::Tensor, torch::Tensor>> tuple;
};

torch::Tensor rows(int rank, int64_t count = 2) { return torch::full({count, 3}, rank, torch::kFloat); }

class Collectives : public Together {
 protected:
  /// What gather is to give when process r passes make(r).
  template <class F>
  torch::Tensor joined(F make) {
    std::vector<torch::Tensor> parts;
    for (int r = 0; r < world(); ++r) parts.push_back(make(r));
    return torch::cat(parts);
  }
};

using TogetherCollectives = Collectives;

TEST_F(TogetherCollectives, GatherJoinsTheRowsOfAllProcessesInOrder) {
  const auto all = accelerator().gather(rows(rank()));
  EXPECT_TRUE(torch::equal(all, joined([](int r) { return rows(r); })));
}

TEST_F(TogetherCollectives, GatherLeavesItsArgumentAlone) {
  auto mine = rows(rank());
  accelerator().gather(mine);
  EXPECT_TRUE(torch::equal(mine, rows(rank())));
}

TEST_F(TogetherCollectives, GatherTakesEveryDtype) {
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kBool, torch::kByte, torch::kChar, torch::kShort,
        torch::kInt, torch::kLong, torch::kComplexFloat, torch::kComplexDouble, torch::kFloat8_e4m3fn, torch::kUInt16}) {
    const auto make = [&](int r) { return torch::full({2, 2}, r % 2, torch::kFloat).to(dtype); };
    const auto all = accelerator().gather(make(rank()));
    EXPECT_EQ(all.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(all.to(torch::kComplexDouble), joined(make).to(torch::kComplexDouble))) << c10::toString(dtype);
  }
}

TEST_F(TogetherCollectives, GatherTakesScalarsEmptyAndNonContiguousTensors) {
  const auto scalar = accelerator().gather(torch::tensor(rank() + 0.5));
  EXPECT_EQ(scalar.dim(), world() > 1 ? 1 : 0);
  EXPECT_TRUE(torch::equal(scalar.reshape({-1}), joined([](int r) { return torch::tensor({r + 0.5}); })));

  EXPECT_EQ(accelerator().gather(torch::empty({0, 4})).sizes(), (std::vector<int64_t>{0, 4}));

  const auto make = [](int r) { return (torch::arange(6) + 10 * r).reshape({2, 3}).t(); };
  EXPECT_TRUE(torch::equal(accelerator().gather(make(rank())), joined(make)));
}

TEST_F(TogetherCollectives, NestedDataKeepsItsTypesAndOrderThreeLevelsDeep) {
  const auto make = [](int r) {
    Sentence sentence{rows(r), torch::tensor({r}), {{"b", {rows(r + 10), rows(r + 20)}}, {"a", {}}}};
    return Batch{{rows(r + 1), rows(r + 2)}, sentence, {rows(r + 3), {rows(r + 4), rows(r + 5)}}};
  };
  const Batch all = accelerator().gather(make(rank()));
  EXPECT_TRUE(torch::equal(all.pair[1], joined([&](int r) { return make(r).pair[1]; })));
  EXPECT_TRUE(torch::equal(all.sentence->extra.at("b")[1], joined([&](int r) { return make(r).sentence->extra.at("b")[1]; })));
  EXPECT_TRUE(all.sentence->extra.at("a").empty());
  EXPECT_TRUE(torch::equal(std::get<1>(all.tuple).second, joined([&](int r) { return std::get<1>(make(r).tuple).second; })));
}

TEST_F(TogetherCollectives, AValueIsNestedDataToo) {
  const auto make = [](int r) {
    return Value(StateDict{{"x", rows(r)}, {"y", Value::Tuple{rows(r + 1), Value::List{rows(r + 2)}}}});
  };
  const Value all = accelerator().gather(make(rank()));
  EXPECT_EQ(all["y"].kind(), Value::Kind::tuple);
  const auto inner = all["y"].as<Value::Tuple>().items[1].as<Value::List>()[0].get<at::Tensor>();
  EXPECT_TRUE(torch::equal(inner, joined([](int r) { return rows(r + 2); })));
}

TEST_F(TogetherCollectives, ReduceAddsAveragesAndTakesTheMaximum) {
  const double sum = world() * (world() - 1) / 2.0;
  EXPECT_EQ(accelerator().reduce(rows(rank()))[0][0].item<double>(), sum);
  EXPECT_EQ(accelerator().reduce(rows(rank()), Reduction::mean)[0][0].item<float>(), static_cast<float>(sum / world()));
  EXPECT_EQ(accelerator().reduce(rows(rank()), Reduction::max)[0][0].item<double>(), world() - 1);
  // The free function averages unless told otherwise, the member adds: as in Python.
  EXPECT_EQ(accelerate::reduce(state(), rows(rank()))[0][0].item<float>(), static_cast<float>(sum / world()));
}

/// Rows for each process, other ones on each.
torch::Tensor rows_for_all(int processes, int rank, int64_t rows = 2) {
  return torch::arange(processes * rows * 3, torch::kFloat).reshape({-1, 3}) * (rank + 1) + 0.1 * rank;
}

TEST_F(TogetherCollectives, ReduceScatterGivesEachProcessItsPartOfWhatReduceGives) {
  for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::max}) {
    const auto mine = rows_for_all(world(), rank());
    const auto part = accelerator().reduce_scatter(mine, reduction);
    const auto whole = accelerator().reduce(mine, reduction);
    EXPECT_TRUE(torch::allclose(part, whole.narrow(0, 2 * rank(), 2))) << part << whole;
    EXPECT_TRUE(torch::equal(mine, rows_for_all(world(), rank()))) << "the argument is left alone";
    if (world() <= 2) {
      EXPECT_TRUE(torch::equal(part, whole.narrow(0, 2 * rank(), 2))) << "two numbers have one sum";
    }
  }
}

TEST_F(TogetherCollectives, ReduceScatterTakesEveryDtypeThatCanBeAddedNestedEmptyAndNonContiguous) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kByte, torch::kChar,
                           torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat, torch::kComplexDouble}) {
    const auto sum = accelerator().reduce_scatter(torch::ones({world(), 3}, torch::kFloat).to(dtype));
    EXPECT_EQ(sum.scalar_type(), dtype);
    EXPECT_EQ(sum.sizes(), (std::vector<int64_t>{1, 3}));
    EXPECT_EQ(torch::real(sum[0][1].to(torch::kComplexDouble)).item<double>(), world()) << c10::toString(dtype);
  }
  EXPECT_EQ(accelerator().reduce_scatter(torch::ones({world()}, torch::kBool)).view(torch::kByte).item<int>(), 1);
  EXPECT_EQ(accelerator().reduce_scatter(torch::empty({0, 4})).sizes(), (std::vector<int64_t>{0, 4}));
  const auto turned = torch::arange(3 * world(), torch::kFloat).reshape({3, world()}).t();
  const auto parts = accelerator().reduce_scatter(std::vector{turned, turned.contiguous()});
  EXPECT_TRUE(torch::equal(parts[0], turned.narrow(0, rank(), 1) * world()));
  EXPECT_TRUE(torch::equal(parts[1], parts[0]));
}

TEST_F(TogetherCollectives, AllToAllSendsPartIToProcessI) {
  const auto part = [](int from, int to) { return torch::full({2, 3}, 10 * from + to, torch::kShort); };
  std::vector<torch::Tensor> out, in;
  for (int r = 0; r < world(); ++r) out.push_back(part(rank(), r)), in.push_back(part(r, rank()));
  EXPECT_TRUE(torch::equal(accelerator().all_to_all(torch::cat(out)), torch::cat(in)));
  EXPECT_TRUE(torch::equal(accelerator().all_to_all(torch::cat(out).to(torch::kBool)), torch::cat(in).to(torch::kBool)));
}

TEST_F(TogetherCollectives, WhatCannotBeDividedAmongTheProcessesIsAnErrorThatSaysSo) {
  if (world() == 1) return;
  const auto odd = torch::ones({world() + 1, 2});
  for (const auto& error : {message_of<UsageError>([&] { accelerator().reduce_scatter(odd); }),
                            message_of<UsageError>([&] { accelerator().all_to_all(odd); })})
    EXPECT_NE(error.find("whose first dimension is not a multiple of the " + std::to_string(world())), std::string::npos)
        << error;
}

TEST_F(TogetherCollectives, ReduceScatterSendsNoMoreThanTheOtherProcessesParts) {
  const auto mine = torch::ones({world() * (1 << 20)});
  accelerator().reduce_scatter(mine);
  const int64_t before = accelerate::testing::written_bytes();
  accelerator().reduce_scatter(mine);
  const auto others = static_cast<double>(mine.nbytes()) * (world() - 1) / world();
  EXPECT_NEAR(static_cast<double>(accelerate::testing::written_bytes() - before), others, 0.01 * others + 4096);
}

TEST_F(TogetherCollectives, ReduceTakesEveryDtypeThatCanBeAdded) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kByte, torch::kChar,
                           torch::kShort, torch::kInt, torch::kLong, torch::kComplexFloat, torch::kComplexDouble}) {
    const auto sum = accelerator().reduce(torch::ones({3}, torch::kFloat).to(dtype));
    EXPECT_EQ(sum.scalar_type(), dtype);
    EXPECT_EQ(torch::real(sum[1].to(torch::kComplexDouble)).item<double>(), world()) << c10::toString(dtype);
  }
  const auto truth = accelerator().reduce(torch::ones({2}, torch::kBool));
  EXPECT_EQ(truth.scalar_type(), torch::kBool);
  EXPECT_EQ(truth.view(torch::kByte).max().item<int>(), 1) << "a truth value is 0 or 1, however many processes say yes";
  EXPECT_EQ(accelerator().reduce(torch::tensor(2.0)).dim(), 0);
  EXPECT_EQ(accelerator().reduce(torch::arange(6).reshape({2, 3}).t())[2][1].item<int64_t>(), 5 * world());
}

TEST_F(TogetherCollectives, ReduceReturnsACopy) {
  const auto mine = rows(rank());
  auto reduced = accelerator().reduce(mine);
  reduced.fill_(-1);
  EXPECT_TRUE(torch::equal(mine, rows(rank())));
}

TEST_F(TogetherCollectives, BroadcastGivesEveryoneTheTensorsOfOneProcess) {
  for (int from = 0; from < world(); ++from) {
    const auto mine = rows(rank());
    const auto got = accelerator().broadcast(std::pair(mine, torch::tensor(rank() == from)), from);
    EXPECT_TRUE(torch::equal(got.first, rows(from)));
    EXPECT_TRUE(got.second.item<bool>());
    EXPECT_TRUE(torch::equal(mine, rows(rank())));
  }
}

TEST_F(TogetherCollectives, PaddingMakesRaggedTensorsGatherable) {
  auto mine = torch::full({2, rank() + 1}, rank());
  const auto behind = accelerator().pad_across_processes(mine, {.dim = 1, .pad_index = -100});
  EXPECT_EQ(behind.size(1), world());
  EXPECT_EQ((behind == -100).sum().item<int64_t>(), 2 * (world() - 1 - rank()));
  EXPECT_EQ(behind[0][0].item<int64_t>(), rank());
  EXPECT_EQ(accelerator().gather(behind).size(0), 2 * world());

  const auto before = accelerator().pad_across_processes(mine, {.dim = -1, .pad_index = 7, .pad_first = true});
  EXPECT_EQ(before[1][world() - 1].item<int64_t>(), rank());
  EXPECT_EQ(accelerator().pad_across_processes(mine, {.dim = 5}).sizes(), mine.sizes());
}

TEST_F(TogetherCollectives, ObjectsOfTheUsersOwnTypesAreGathered) {
  struct Score {
    std::string name;
    double value;
    std::optional<int> epoch;
    bool operator==(const Score&) const = default;
  };
  std::vector<Score> mine;
  for (int i = 0; i <= rank(); ++i)
    mine.push_back({"process " + std::to_string(rank()), i / 2.0, i % 2 ? std::optional(i) : std::nullopt});
  const auto all = accelerator().gather_object(mine);
  std::vector<Score> expected;
  for (int r = 0; r < world(); ++r) {
    for (int i = 0; i <= r; ++i)
      expected.push_back({"process " + std::to_string(r), i / 2.0, i % 2 ? std::optional(i) : std::nullopt});
  }
  EXPECT_EQ(all, expected);

  const auto maps = accelerator().gather_object(std::vector<std::map<int, std::tuple<char, bool>>>{{{rank(), {'x', true}}}});
  EXPECT_EQ(maps.size(), static_cast<size_t>(world()));
  EXPECT_EQ(maps.back().begin()->first, world() - 1);
}

TEST_F(TogetherCollectives, ObjectsMayBeLargeAndOfAnotherSizeOnEveryProcess) {
  for (const size_t size : {size_t{0}, size_t{1000}, size_t{1015}, size_t{1016}, size_t{1017}, size_t{5'000'000}}) {
    const auto text = [&](int r) { return std::string(size + static_cast<size_t>(r), static_cast<char>('a' + r)); };
    const auto all = accelerator().gather_object(std::vector{text(rank())});
    for (int r = 0; r < world(); ++r) EXPECT_EQ(all[static_cast<size_t>(r)], text(r));
    std::vector<std::string> list = {text(rank()), "second"};
    accelerator().broadcast_object_list(list, world() - 1);
    EXPECT_EQ(list, (std::vector<std::string>{text(world() - 1), "second"}));
  }
}

TEST_F(TogetherCollectives, ValuesOfEveryKindTravelUnchanged) {
  const Value mine = StateDict{{"none", nullptr},
                               {"truth", true},
                               {"count", int64_t{-1} << 62},
                               {"real", 0.1},
                               {"text", std::string("caf\xc3\xa9\0zero", 10)},
                               {"tuple", Value::Tuple{1, Value::Tuple{}, Value::List{}}},
                               {"half", torch::full({2, 3}, 0.5, torch::kHalf)},
                               {"empty", torch::empty({2, 0, 3})},
                               {"tensor", torch::arange(6).reshape({2, 3}).t()}};
  Value list = Value::List{rank() == 0 ? mine : Value("another")};
  accelerator().broadcast_object_list(list);
  EXPECT_EQ(list.as<Value::List>()[0], mine) << to_string(list);
}

TEST_F(TogetherCollectives, InputsAreSplitSoThatTheFirstProcessesHaveOneMore) {
  std::vector<int> inputs(17);
  std::iota(inputs.begin(), inputs.end(), 0);
  const auto mine = accelerator().split_between_processes(inputs);
  const size_t expected =
      17 / static_cast<size_t>(world()) + (static_cast<size_t>(rank()) < 17 % static_cast<size_t>(world()) ? 1 : 0);
  EXPECT_EQ(mine.size(), expected);
  EXPECT_EQ(accelerator().gather_object(mine), inputs);

  const auto padded = accelerator().split_between_processes(inputs, {.apply_padding = true});
  EXPECT_EQ(padded.size(), (17 + static_cast<size_t>(world()) - 1) / static_cast<size_t>(world()));
  const std::map<std::string, torch::Tensor> map = {{"t", torch::arange(5)}};
  EXPECT_EQ(accelerator().split_between_processes(map).at("t").size(0), 5 / world() + (rank() < 5 % world() ? 1 : 0));
  EXPECT_EQ(accelerator().split_between_processes(std::string("whole")), "whole");
}

TEST_F(TogetherCollectives, ADictionaryAndATupleAreSplitToo) {
  const StateDict dict = {{"t", torch::arange(4)}, {"l", Value::List{1, 2, 3, 4}}, {"whole", "text"}};
  const auto mine = accelerator().split_between_processes(dict);
  EXPECT_EQ(mine.at("t").get<at::Tensor>().size(0), 4 / world() + (rank() < 4 % world() ? 1 : 0));
  EXPECT_EQ(mine.at("whole").get<std::string>(), "text");
  const Value::Tuple tuple = {1, 2, 3, 4};
  EXPECT_EQ(accelerator().split_between_processes(tuple).items.size(), mine.at("l").as<Value::List>().size());
  const std::map<std::string, Value> map = {{"a", Value::List{1, 2, 3, 4}}, {"b", 7}};
  EXPECT_EQ(accelerator().split_between_processes(map).at("a").as<Value::List>().size(),
            tuple.items.size() / static_cast<size_t>(world()) + (rank() < 4 % world() ? 1 : 0));
}

TEST_F(TogetherCollectives, ConjugatedAndNegatedViewsTravelAsWhatTheyShow) {
  const auto z = torch::complex(torch::ones({2}), torch::full({2}, rank() + 1.0f));
  for (const auto& shown : {z.conj(), torch::imag(z.conj())}) {
    const auto mine = shown.clone();
    EXPECT_TRUE(torch::equal(accelerator().gather(shown).slice(0, 2 * rank(), 2 * rank() + 2), mine));
    EXPECT_TRUE(torch::equal(accelerator().gather_object(std::vector{shown})[static_cast<size_t>(rank())], mine));
    EXPECT_TRUE(torch::equal(accelerator().reduce(shown), accelerator().reduce(mine)));
  }
}

TEST_F(TogetherCollectives, PaddingKeepsGradientsOnEveryProcess) {
  const auto mine = torch::ones({rank() + 1}, torch::requires_grad());
  const auto padded = accelerator().pad_across_processes(mine);
  EXPECT_TRUE(padded.requires_grad());
  padded.sum().backward();
  EXPECT_EQ(mine.grad().sum().item<int>(), rank() + 1);
}

TEST_F(TogetherCollectives, ATensorWithoutTheDimensionToPadTakesPart) {
  const auto mine = rank() == 0 ? torch::ones({2, 3}) : torch::ones({2});
  EXPECT_EQ(accelerator().pad_across_processes(mine, {.dim = 1}).sizes(), mine.sizes());
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world()) << "nobody fell out of step";
}

TEST_F(TogetherCollectives, AMistakeThatAllMakeIsToldOnAll) {
  std::vector<torch::Tensor> list = {torch::eye(2).to_sparse()};
  if (world() > 1) {
    EXPECT_THROW(accelerator().broadcast_object_list(list), UsageError);
    EXPECT_THROW(accelerator().gather_object(std::vector{torch::empty({1}, torch::kMeta)}), UsageError);
  }
  EXPECT_THROW(accelerator().reduce(torch::Tensor()), UsageError);
}

enum class Colour { red, green };
struct Paint {
  Colour colour;
  std::filesystem::path file;
  std::deque<int> numbers;
  bool operator==(const Paint&) const = default;
};
static_assert(!accelerate::Object<std::string_view>, "it would point into what is gone when it arrives");

TEST_F(TogetherCollectives, EnumerationsPathsAndDequesAreObjects) {
  const Paint paint{Colour::green, "a/b", {1, 2}};
  EXPECT_EQ(accelerator().gather_object(std::vector{paint}), std::vector<Paint>(static_cast<size_t>(world()), paint));
}

TEST_F(TogetherCollectives, MisuseIsToldByNameBeforeAnythingTravels) {
  if (world() > 1) {
    EXPECT_NE(message_of<UsageError>([&] {
                accelerator().gather(Value("text"));
              }).find("gather takes dense tensors and was given text 'text'"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] { accelerator().gather(torch::Tensor()); }).find("undefined"), std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] { accelerator().gather(torch::empty({2}, torch::kMeta)); }).find("meta"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] { accelerator().gather(torch::eye(2).to_sparse()); }).find("sparse"), std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] { accelerator().reduce(torch::ones({2}, torch::kInt), Reduction::mean); }).find("int32"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] {
                accelerator().reduce(torch::ones({2}, torch::kComplexFloat), Reduction::max);
              }).find("complex64"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] {
                accelerator().reduce(torch::ones({2}).to(torch::kFloat8_e5m2));
              }).find("float8_e5m2 tensors, which the backend gloo cannot add"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] { accelerator().gather_object(Value("ab")); }).find("list"), std::string::npos);
    const std::map<std::string, std::vector<int>> uneven = {{"a", {1, 2}}, {"b", {1}}};
    EXPECT_NE(message_of<UsageError>([&] { accelerator().split_between_processes(uneven); }).find("same length"),
              std::string::npos);
    EXPECT_NE(message_of<UsageError>([&] {
                accelerator().split_between_processes(std::vector<int>{}, {.apply_padding = true});
              }).find("last element"),
              std::string::npos);
  }
  EXPECT_NE(message_of<UsageError>([&] {
              accelerator().broadcast(torch::ones({1}), world());
            }).find("from_process=" + std::to_string(world())),
            std::string::npos);
  EXPECT_NE(message_of<UsageError>([&] { accelerator().broadcast(torch::ones({1}), -1); }).find("from_process=-1"),
            std::string::npos);
  // The group is as good as before.
  accelerator().wait_for_everyone();
  EXPECT_EQ(accelerator().reduce(torch::ones({1})).item<int>(), world());
}

TEST_F(TogetherCollectives, TwoAcceleratorsInOneProcessDoNotMixUp) {
  accelerate::Accelerator second({.timeout = std::chrono::seconds(60)});
  const auto first = accelerator().gather(torch::tensor({rank()}));
  const auto other = second.gather(torch::tensor({rank() + 100}));
  EXPECT_EQ(first.min().item<int>(), 0);
  EXPECT_EQ(other.min().item<int>(), 100);
  for (int i = 0; i < 3; ++i) {
    accelerate::Accelerator brief({.timeout = std::chrono::seconds(60)});
    EXPECT_EQ(brief.reduce(torch::ones({1})).item<int>(), world());
  }
}

TEST_F(TogetherCollectives, RandomStatesBecomeThoseOfTheMainProcess) {
  accelerate::set_seed(5, {.device_specific = true});
  const auto apart = accelerator().gather(torch::rand({1}));
  EXPECT_EQ(std::get<0>(torch::_unique(apart)).size(0), world());
  accelerator().synchronize_rng_states({accelerate::RngType::torch});
  const auto together = accelerator().gather(torch::rand({1}));
  EXPECT_EQ(std::get<0>(torch::_unique(together)).size(0), 1);

  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank()));
  accelerator().synchronize_rng_states({accelerate::RngType::generator}, generator);
  const auto drawn = accelerator().gather(torch::rand({1}, generator));
  EXPECT_EQ(std::get<0>(torch::_unique(drawn)).size(0), 1);
  EXPECT_THROW(accelerator().synchronize_rng_states({accelerate::RngType::generator}), UsageError);
}

TEST_F(TogetherCollectives, SetSeedGivesThePythonNumbers) {
  accelerate::set_seed(42);
  EXPECT_FLOAT_EQ(torch::rand({1}).item<float>(), 0.8822692632675171f);
  accelerate::set_seed(40, {.device_specific = true}, 2);
  EXPECT_FLOAT_EQ(torch::rand({1}).item<float>(), 0.8822692632675171f);
}

}  // namespace
