#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/file.h"
#include "formats/torch_file.h"
#include "support/run_program.h"
#include "support/temporary_folder.h"

// What this library writes is read by the real torch, which is told to accept plain data only.
namespace accelerate::testing {

using namespace detail;
namespace {

/// Runs lines of Python; an assertion that fails is shown.
void expect_python(const std::string& lines, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {ACCELERATE_PYTHON, "-c", lines};
  command.insert(command.end(), arguments.begin(), arguments.end());
  const auto result = run_program(command, {.limit = std::chrono::seconds(300)});
  EXPECT_EQ(result.exit_code, 0) << result.errors;
}

PickleNode* make_tensor(PickleTree& tree, const std::string& storage, const char* dtype, uint64_t elements,
                        std::vector<int64_t> sizes, std::vector<int64_t> strides) {
  PickleTensor tensor;
  tensor.storage = storage;
  tensor.dtype = find_dtype(dtype);
  tensor.storage_elements = elements;
  tensor.sizes = std::move(sizes);
  tensor.strides = std::move(strides);
  return tree.tensor(std::move(tensor));
}

TEST(PythonReads, EveryKindThatPlainDataHas) {
  TemporaryFolder folder;
  PickleTree tree;
  auto* parameter = make_tensor(tree, "0", "float32", 6, {2, 3}, {3, 1});
  auto& details = *std::get<std::unique_ptr<PickleTensor>>(parameter->data);
  details.parameter = details.requires_grad = true;
  auto* state = tree.dict({{tree.key("w"), parameter}, {tree.key("t"), make_tensor(tree, "0", "float32", 6, {3, 2}, {1, 3})}},
                          PickleKind::kOrderedDict);
  state->own_dict().attributes = tree.dict({{tree.key("_metadata"), tree.dict({}, PickleKind::kOrderedDict)}});
  tree.root =
      tree.dict({{tree.key("state"), state},
                 {tree.key("float8"), make_tensor(tree, "1", "float8_e4m3fn", 2, {2}, {1})},
                 {tree.key("list"),
                  tree.list({tree.none(), tree.boolean(true), tree.integer(-1), tree.integer(INT64_MIN), tree.integer(70000),
                             tree.number(0.1), tree.text("caf\xc3\xa9"), tree.bytes("\x01\xff"), tree.bytes("")})},
                 {tree.key("big"), tree.make(PickleKind::kBigInt, std::string(9, '\0') + "\x01")},
                 {tree.integer(7), tree.tuple({tree.make(PickleKind::kSize, PickleItems{tree.integer(2)}),
                                               tree.make(PickleKind::kDevice, std::string("cuda:1")),
                                               tree.make(PickleKind::kDtype, find_dtype("float16")), tree.complex({1, 2})})},
                 {tree.key("counter"), tree.dict({{tree.text("a"), tree.integer(2)}}, PickleKind::kCounter)},
                 {tree.key("array"), tree.make(PickleKind::kByteArray, std::string("xy"))},
                 {tree.key("set"), tree.make(PickleKind::kSet, PickleItems{tree.integer(3)})}});
  OutputFile file(folder / "all.pt");
  TorchFileWriter writer(file, "all", *tree.root);
  const float numbers[] = {0, 1, 2, 3, 4, 5};
  writer.begin("0", sizeof(numbers));
  writer.write(numbers, sizeof(numbers));
  writer.begin("1", 2);
  writer.write("\x38\x40", 2);
  writer.finish();
  file.commit();
  expect_python(R"(
import sys, torch, collections
d = torch.load(sys.argv[1], weights_only=True)
assert list(d) == ['state', 'float8', 'list', 'big', 7, 'counter', 'array', 'set'], list(d)
s = d['state']
assert type(s) is collections.OrderedDict and s._metadata == {}
assert type(s['w']) is torch.nn.Parameter and s['w'].requires_grad and s['w'].tolist() == [[0, 1, 2], [3, 4, 5]]
assert s['t'].tolist() == [[0, 3], [1, 4], [2, 5]] and s['t'].data_ptr() == s['w'].data_ptr()
assert d['float8'].dtype == torch.float8_e4m3fn and d['float8'].float().tolist() == [1, 2]
assert d['list'] == [None, True, -1, -2**63, 70000, 0.1, 'caf\u00e9', b'\x01\xff', b''] and d['list'][1] is True
assert d['big'] == 2**72
assert d[7] == (torch.Size([2]), torch.device('cuda:1'), torch.float16, 1+2j)
assert d['counter'] == collections.Counter('aa') and d['array'] == bytearray(b'xy') and d['set'] == {3}
)",
                {folder / "all.pt"});
}

TEST(PythonReads, MergedWeightsOfEitherFormat) {
  TemporaryFolder folder;
  const std::string shards = std::string(ACCELERATE_TEST_GOLDEN) + "/checkpoints/model_sharded";
  for (const std::string flag : {"--unsafe_serialization", ""}) {
    std::vector<std::string> command = {ACCELERATE_CLI, "merge-weights", shards, folder / "out"};
    if (!flag.empty()) command.push_back(flag);
    EXPECT_EQ(run_program(command).exit_code, 0);
  }
  expect_python(R"(
import sys, glob, torch
from safetensors.torch import load_file
whole = {}
for f in glob.glob(sys.argv[1] + '/*.safetensors'): whole.update(load_file(f))
for merged in (torch.load(sys.argv[2] + '/pytorch_model.bin', weights_only=True), load_file(sys.argv[2] + '/model.safetensors')):
    assert set(merged) == set(whole) and len(whole) == 7
    for name in whole: assert torch.equal(merged[name], whole[name]) and merged[name].dtype == whole[name].dtype
)",
                {shards, folder / "out"});
}

}  // namespace
}  // namespace accelerate::testing
