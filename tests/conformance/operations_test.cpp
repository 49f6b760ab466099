#include <torch/torch.h>

#include "conformance/golden.h"
#include "support/together.h"

namespace {

using accelerate::Reduction;
using accelerate::Value;
using nlohmann::json;

class TogetherGolden : public Together {
 protected:
  static Reduction reduction_of(const json& options) {
    const std::string name = options.at("reduction");
    for (const auto reduction : {Reduction::sum, Reduction::mean, Reduction::max, Reduction::none}) {
      if (name == to_string(reduction)) return reduction;
    }
    throw std::runtime_error("unknown reduction " + name);
  }

  static Value run(const std::string& op, const json& options, Value in) {
    auto& a = accelerator();
    if (op == "gather") return a.gather(in);
    if (op == "reduce") return a.reduce(in, reduction_of(options));
    if (op == "accelerator.reduce") return a.reduce(in);
    if (op == "utils.reduce") return accelerate::reduce(state(), in);
    if (op == "broadcast") return a.broadcast(in, options.at("from_process").get<int>());
    if (op == "gather_object") return a.gather_object(in);
    if (op == "split_between_processes")
      return a.split_between_processes(in, {.apply_padding = options.at("apply_padding").get<bool>()});
    if (op == "pad_across_processes") {
      return a.pad_across_processes(in, {.dim = options.value("dim", 0),
                                         .pad_index = options.value("pad_index", 0.0),
                                         .pad_first = options.value("pad_first", false)});
    }
    if (op == "broadcast_object_list") {
      a.broadcast_object_list(in, options.at("from_process").get<int>());
      return in;
    }
    if (op == "check_trigger") {
      if (in.get<bool>()) a.set_trigger();
      const bool first = a.check_trigger();
      return Value::List{first, a.check_trigger()};
    }
    throw std::runtime_error("unknown op " + op);
  }

  /// Why ours is another result on purpose; docs/python_to_cpp.md has the same sentences.
  static std::string listed_difference(const json& c) {
    const json& in = c.at("in").at(static_cast<size_t>(rank()));
    if (c.at("op") == "gather_object" && in.at("t") == "str" && world() > 1)
      return "gather_object of a text is an error, not a list of its letters";
    if (c.at("op") == "split_between_processes" && in.at("t") == "tuple" && c.at("options").at("apply_padding") && world() > 1) {
      return "split_between_processes pads tuples too";
    }
    return "";
  }
};

TEST_F(TogetherGolden, Operations) {
  const json cases = golden::read("operations.json").value("world_" + std::to_string(world()), json::array());
  golden::Tally tally("operations.json, " + std::to_string(world()) + " processes, process 0");
  for (const auto& c : cases) {
    const auto& expected = c.at("out").at(static_cast<size_t>(rank()));
    const std::string name = c.at("op").get<std::string>() + " " + c.at("options").dump() + " of " +
                             c.at("in").at(static_cast<size_t>(rank())).dump().substr(0, 200);
    const auto ours = golden::outcome_of(
        [&] { return run(c.at("op"), c.at("options"), golden::value_of(c.at("in").at(static_cast<size_t>(rank())))); });
    const bool held = expected.contains("error") ? !ours.error.empty()
                                                 : ours.error.empty() && golden::same(ours.value, golden::value_of(expected));
    tally.judge(name, held, to_string(ours) + " instead of " + expected.dump().substr(0, 300), listed_difference(c));
  }
  EXPECT_GT(tally.cases(), 0) << "no cases for " << world() << " processes";
}

Value run_local(const json& c, bool& known) {
  const std::string op = c.at("op");
  const json& options = c.at("options");
  const Value in = golden::value_of(c.at("in"));
  if (op == "find_batch_size") return accelerate::find_batch_size(in);
  if (op == "slice_tensors")
    return accelerate::slice_tensors(in, options.at("start").get<int64_t>(), options.at("stop").get<int64_t>());
  if (op == "listify") return accelerate::listify(in);
  if (op == "convert_to_fp32") return accelerate::convert_to_fp32(in);
  if (op == "concatenate") return accelerate::concatenate(in.as<Value::List>());
  if (op == "pad_input_tensors")
    return accelerate::pad_input_tensors(in, options.at("batch_size").get<int64_t>(), options.at("num_processes").get<int64_t>());
  known = false;
  return {};
}

TEST(Golden, LocalOperations) {
  golden::Tally tally("operations.json, local");
  for (const auto& c : golden::read("operations.json").value("local", json::array())) {
    bool known = true;
    const auto ours = golden::outcome_of([&] { return run_local(c, known); });
    const auto& expected = c.at("out");
    if (!known) {
      tally.absent(c.at("op").get<std::string>() + " (it prints Python's objects)");
    } else {
      const bool held = expected.contains("error") ? !ours.error.empty()
                                                   : ours.error.empty() && golden::same(ours.value, golden::value_of(expected));
      tally.judge(c.dump().substr(0, 300), held, to_string(ours));
    }
  }
  EXPECT_GT(tally.cases(), 0);
}

TEST(Golden, PaddedInputs) {
  golden::Tally tally("pad_input_tensors.json");
  const json table = golden::read("pad_input_tensors.json").value("rows_of_1_to_20_by_processes", json::object());
  for (const auto& [processes, counts] : table.items()) {
    const int64_t count = std::stoll(processes);
    for (int64_t rows = 1; rows <= std::ssize(counts); ++rows) {
      const auto python = counts[static_cast<size_t>(rows - 1)].get<int64_t>(),
                 next_multiple = (rows + count - 1) / count * count;
      const auto batch = torch::arange(1.0, 2.0 * static_cast<double>(rows) + 1).view({rows, 2});
      const auto padded = accelerate::pad_input_tensors(batch, rows, count);
      EXPECT_EQ(padded.size(0), next_multiple);
      EXPECT_TRUE(torch::equal(padded.slice(0, 0, rows), batch));
      EXPECT_EQ(padded.slice(0, rows).count_nonzero().item<int64_t>(), 0);
      tally.judge(std::to_string(rows) + " rows for " + processes + " processes", padded.size(0) == python,
                  std::to_string(padded.size(0)) + " rows instead of " + std::to_string(python),
                  python == next_multiple ? "" : "pad_input_tensors pads to the next multiple of the number of processes");
    }
  }
  EXPECT_EQ(tally.cases(), 80);
}

}  // namespace
