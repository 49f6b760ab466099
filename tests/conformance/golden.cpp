#include "conformance/golden.h"

#include <accelerate/core/error.h>
#include <accelerate/core/launch_environment.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "support/paths.h"

namespace golden {
namespace {

using accelerate::StateDict;
using accelerate::Value;

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kDtypes = {{"float32", at::kFloat},
                                                                {"float64", at::kDouble},
                                                                {"float16", at::kHalf},
                                                                {"bfloat16", at::kBFloat16},
                                                                {"bool", at::kBool},
                                                                {"uint8", at::kByte},
                                                                {"int8", at::kChar},
                                                                {"int16", at::kShort},
                                                                {"int32", at::kInt},
                                                                {"int64", at::kLong},
                                                                {"complex64", at::kComplexFloat},
                                                                {"complex128", at::kComplexDouble},
                                                                {"uint16", at::kUInt16},
                                                                {"uint32", at::kUInt32},
                                                                {"uint64", at::kUInt64},
                                                                {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                                {"float8_e5m2", at::kFloat8_e5m2}};
  return kDtypes.at(name);
}

double number_of(const nlohmann::json& number) {
  if (number.is_boolean()) return number.get<bool>();
  if (number.is_string())
    return std::stod(number.get<std::string>() == "NaN" ? "nan" : number.get<std::string>() == "Infinity" ? "inf" : "-inf");
  return number.get<double>();
}

at::Tensor tensor_of(const nlohmann::json& node) {
  // Large integers are no doubles.
  if (node.at("dtype") == "int64") {
    return torch::tensor(node.at("data").get<std::vector<int64_t>>(), torch::kLong)
        .reshape(node.at("shape").get<std::vector<int64_t>>());
  }
  std::vector<double> numbers;
  for (const auto& number : node.at("data")) numbers.push_back(number_of(number));
  const auto dtype = dtype_of(node.at("dtype"));
  at::Tensor tensor = torch::tensor(numbers, torch::kDouble);
  if (at::isComplexType(dtype)) tensor = torch::view_as_complex(tensor.reshape({-1, 2}));
  return tensor.reshape(node.at("shape").get<std::vector<int64_t>>()).to(dtype);
}

Value::List list_of(const nlohmann::json& nodes) {
  Value::List list;
  for (const auto& node : nodes) list.push_back(value_of(node));
  return list;
}

bool same_lists(const Value::List& ours, const Value::List& theirs) {
  return std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                    [](const Value& a, const Value& b) { return same(a, b); });
}

bool same_tensors(const at::Tensor& ours, const at::Tensor& theirs) {
  if (ours.scalar_type() != theirs.scalar_type() || ours.sizes() != theirs.sizes()) return false;
  return at::isFloatingType(ours.scalar_type()) ? torch::allclose(ours, theirs, 1e-6, 0, true) : torch::equal(ours, theirs);
}

}  // namespace

std::string path(const std::string& name) {
  const char* folder = std::getenv("ACCELERATE_GOLDEN_DIR");
  return folder && *folder ? std::string(folder) + "/" + name : std::string(kProjectFolder) + "/tests/golden/" + name;
}

nlohmann::json read(const std::string& name) {
  std::ifstream file(path(name));
  EXPECT_TRUE(file) << "cannot read " << path(name);
  return file ? nlohmann::json::parse(file) : nlohmann::json::object();
}

Value value_of(const nlohmann::json& node) {
  const std::string kind = node.at("t");
  if (kind == "tensor") return tensor_of(node);
  if (kind == "list") return list_of(node.at("v"));
  if (kind == "tuple" || kind == "namedtuple") return Value::Tuple(list_of(node.at("v")));
  if (kind == "int") return node.at("v").get<int64_t>();
  if (kind == "float") return number_of(node.at("v"));
  if (kind == "str") return node.at("v").get<std::string>();
  if (kind == "bool") return node.at("v").get<bool>();
  if (kind == "none") return nullptr;
  if (kind == "dict") {
    StateDict dict;
    for (const auto& entry : node.at("v")) {
      dict[entry[0].is_number() ? entry[0].dump() : entry[0].get<std::string>()] = value_of(entry[1]);
      dict.set_numbered(entry[0].is_number());
    }
    return dict;
  }
  throw std::runtime_error("the golden data has a node of the unknown kind " + kind);
}

bool same(const Value& ours, const Value& theirs) {
  if (ours.kind() != theirs.kind()) return false;
  switch (ours.kind()) {
    case Value::Kind::tensor:
      return same_tensors(ours.as<at::Tensor>(), theirs.as<at::Tensor>());
    case Value::Kind::list:
      return same_lists(ours.as<Value::List>(), theirs.as<Value::List>());
    case Value::Kind::tuple:
      return same_lists(ours.as<Value::Tuple>().items, theirs.as<Value::Tuple>().items);
    case Value::Kind::dict: {
      const auto &a = ours.as<StateDict>(), &b = theirs.as<StateDict>();
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](const auto& x, const auto& y) { return x.first == y.first && same(x.second, y.second); });
    }
    default:
      return ours == theirs;
  }
}

void Tally::differs(const std::string& name, const std::string& how) {
  ++differing_;
  ADD_FAILURE() << title_ << ", " << name << ": " << how;
}

void Tally::judge(const std::string& name, bool held, const std::string& gave, const std::string& listed) {
  if (held != listed.empty()) return differs(name, held ? "held although it is listed as a difference" : "gave " + gave);
  if (held) {
    ++held_;
    return;
  }
  std::ifstream file(std::string(kProjectFolder) + "/docs/python_to_cpp.md");
  const std::string documented{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(documented.find(listed), std::string::npos) << "docs/python_to_cpp.md does not list: " << listed;
  ++listed_[listed];
}

std::string to_string(const Outcome& outcome) { return outcome.error.empty() ? to_string(outcome.value) : outcome.error; }

int Tally::cases() const {
  int sum = held_ + differing_;
  for (const auto& counts : {listed_, absent_}) {
    for (const auto& [reason, count] : counts) sum += count;
  }
  return sum;
}

Tally::~Tally() {
  if (accelerate::read_launch_environment().process_index != 0) return;
  std::cout << "golden: " << title_ << ": " << held_ << " of " << cases() << " cases held";
  if (differing_ > 0) std::cout << ", " << differing_ << " DIFFER";
  for (const auto& [reason, count] : listed_)
    std::cout << "\n        " << count << " differ as docs/python_to_cpp.md lists: " << reason;
  for (const auto& [reason, count] : absent_) std::cout << "\n        " << count << " have no counterpart here: " << reason;
  std::cout << std::endl;
}

Outcome outcome_of(const std::function<Value()>& call) {
  try {
    return {call(), ""};
  } catch (const accelerate::Error& error) {
    return {{}, error.what()};
  }
}

}  // namespace golden
