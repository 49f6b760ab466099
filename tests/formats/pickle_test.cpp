#include <accelerate/core/error.h>
#include <gtest/gtest.h>

#include "formats/pickle_reader.h"
#include "formats/pickle_writer.h"
#include "support/error_text.h"

namespace {

using accelerate::CheckpointError;
using accelerate::detail::PickleKind;
using accelerate::detail::PickleTree;
using accelerate::detail::read_pickle;
using accelerate::testing::expect_parts;
using accelerate::testing::message_of;

PickleTree unpickle(const std::string& bytes) { return read_pickle(bytes, "some.bin"); }

std::string pickle_error(const std::string& bytes) {
  const auto text = message_of<CheckpointError>([&] { unpickle(bytes); });
  if (text != "no error") expect_parts(text, {"some.bin"});
  return text;
}

/// A text of protocol 2.
std::string pickled_text(const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return "X" + std::string(reinterpret_cast<const char*>(&size), 4) + text;
}

std::string stack_global(const std::string& module, const std::string& name) {
  return pickled_text(module) + pickled_text(name) + "\x93";
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

TEST(Pickle, NumbersOfEveryOpcodeAreRead) {
  using namespace std::string_literals;
  const auto tree = unpickle(
      "\x80\x02(K\xffM\xff\xffJ\xff\xff\xff\xff\x8a\x00\x8a\x01\x80\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00"s
      "\x8b\x01\x00\x00\x00\x7f\x88\x89NG\x3f\xf8\x00\x00\x00\x00\x00\x00I42\nI01\nL-7L\nF2.5\nt."s);
  const auto& items = tree.root->items();
  const std::vector<int64_t> wanted = {255, 65535, -1, 0, -128};
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(items[i]->integer(), wanted[i]) << i;
  EXPECT_EQ(accelerate::detail::big_integer_text(items[5]->text()), "18446744073709551615");
  EXPECT_EQ(items[6]->integer(), 127);
  EXPECT_TRUE(items[7]->boolean());
  EXPECT_FALSE(items[8]->boolean());
  EXPECT_TRUE(items[9]->is(PickleKind::kNone));
  EXPECT_EQ(items[10]->number(), 1.5);
  EXPECT_EQ(items[11]->integer(), 42);
  EXPECT_TRUE(items[12]->boolean());
  EXPECT_EQ(items[13]->integer(), -7);
  EXPECT_EQ(items[14]->number(), 2.5);
}

TEST(Pickle, LongNumbersAreWrittenInDecimal) {
  EXPECT_EQ(accelerate::detail::big_integer_text(std::string(1, '\0')), "0");
  EXPECT_EQ(accelerate::detail::big_integer_text(std::string(1, '\x80')), "-128");
  EXPECT_EQ(accelerate::detail::big_integer_text(std::string(9, '\0') + "\x01"), "4722366482869645213696");
  EXPECT_EQ(accelerate::detail::big_integer_text(std::string(9, '\0') + "\xff"), "-4722366482869645213696");
}

TEST(Pickle, ContainersOfAllProtocolsAreRead) {
  using namespace std::string_literals;
  // Protocol 5: a set, a frozenset, bytes, a bytearray, in a list.
  const auto tree = unpickle(
      "\x80\x05\x95\x20\x00\x00\x00\x00\x00\x00\x00]\x94(\x8f\x94(K\x01\x90(K\x02\x91\x94"
      "C\x01z"
      "\x96\x02\x00\x00\x00\x00\x00\x00\x00xye."s);
  const auto& items = tree.root->items();
  EXPECT_TRUE(items[0]->is(PickleKind::kSet));
  EXPECT_TRUE(items[1]->is(PickleKind::kFrozenSet));
  EXPECT_EQ(items[2]->text(), "z");
  EXPECT_TRUE(items[3]->is(PickleKind::kByteArray));
  // Protocol 0: a dict with a list, by marks, lines and text memo numbers.
  const auto old = unpickle("(dp0\nS'a'\np1\n(lp2\nI1\naI2\nasVb\ng2\ns.");
  ASSERT_EQ(old.root->dict().items.size(), 2u);
  EXPECT_EQ(old.root->find("a"), old.root->find("b"));
  EXPECT_EQ(old.root->find("a")->items().size(), 2u);
}

TEST(Pickle, EveryNameThatPlainDataDoesNotNeedIsRefusedByName) {
  for (const std::string name : {"os system",
                                 "posix system",
                                 "nt system",
                                 "builtins eval",
                                 "builtins exec",
                                 "builtins getattr",
                                 "__builtin__ getattr",
                                 "builtins __import__",
                                 "builtins print",
                                 "builtins open",
                                 "subprocess Popen",
                                 "sys exit",
                                 "importlib import_module",
                                 "runpy _run_code",
                                 "socket socket",
                                 "webbrowser open",
                                 "operator attrgetter",
                                 "functools partial",
                                 "types CodeType",
                                 "copyreg _reconstructor",
                                 "copy_reg _reconstructor",
                                 "pickle loads",
                                 "torch load",
                                 "torch.jit _script",
                                 "torch.storage _load_from_bytes",
                                 "torch._utils _rebuild_wrapper_subclass",
                                 "torch._utils _rebuild_sparse_tensor",
                                 "torch._utils _rebuild_qtensor",
                                 "torch.hub load",
                                 "torch.utils.cpp_extension load_inline",
                                 "torch.nn Module",
                                 "numpy load",
                                 "numpy.core.multiarray fromfile",
                                 "numpy matrix",
                                 "collections namedtuple",
                                 "_codecs decode",
                                 "transformers.training_args TrainingArguments",
                                 "accelerate.data_loader SeedableRandomSampler",
                                 "__main__ Model"}) {
    const size_t blank = name.find(' ');
    const std::string module = name.substr(0, blank), function = name.substr(blank + 1);
    const std::string wanted = (module == "__builtin__" ? "builtins"
                                : module == "copy_reg"  ? "copyreg"
                                                        : module) +
                               "." + function;
    const std::string shown = wanted.starts_with("numpy.core.") ? "numpy._core." + wanted.substr(11) : wanted;
    EXPECT_NE(pickle_error("\x80\x02"
                           "c" +
                           module + "\n" + function + "\n(" + pickled_text("id") + "tR.")
                  .find(shown),
              std::string::npos)
        << name;
    EXPECT_NE(pickle_error("\x80\x04" + stack_global(module, function) + "(" + pickled_text("id") + "tR.").find(shown),
              std::string::npos)
        << name;
    EXPECT_NE(pickle_error("(" + pickled_text("id") + "i" + module + "\n" + function + "\n.").find(shown), std::string::npos)
        << name;
  }
}

TEST(Pickle, KnownNamesAreNotCalledWithWhatTheyDoNotTake) {
  const std::vector<std::string> calls = {
      "c_codecs\nencode\n(" + pickled_text("x") + pickled_text("rot13") + "tR.",
      "c_codecs\nencode\n)R.",
      "ccollections\nOrderedDict\n(" + pickled_text("xy") + "tR.",
      "ccollections\nOrderedDict\n(](K\x01K\x02etR.",
      "c__builtin__\nlist\n)R.",
      "cnumpy\nndarray\n)R.",
      "ctorch\nTensor\n)R.",
      "ctorch\nFloatStorage\n)R.",
      "ctorch\nfloat32\n)R.",
      "ctorch._utils\n_rebuild_tensor_v2\n)R.",
      "ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x01))\x89NtR.",
      "cnumpy.core.multiarray\n_reconstruct\n(ctorch\nSize\n))tR.",
      "cnumpy\ndtype\n(" + pickled_text("O8") + "\x89\x88tR.",
      "cnumpy\ndtype\n(" + pickled_text("V8") + "\x89\x88tR.",
      "(K\x01K\x02tR.",
      "K\x01)R.",
      "K\x01}b.",
      "ctorch.serialization\n_get_layout\n(" + pickled_text("torch.sparse_coo") + "tR.",
      "ctorch\nSize\n(]" + pickled_text("x") + "atR.",
      "(" + pickled_text("module") + "NNNNtQ.",
      "K\x07Q.",
      "P12\n.",
      "\x82\x01.",
      "\x97.",
  };
  for (const auto& call : calls) EXPECT_NE(pickle_error("\x80\x02" + call), "no error") << call;
}

TEST(Pickle, ClassesAndStoragesDoNotStandAsValues) {
  EXPECT_NE(pickle_error("ccollections\nOrderedDict\n.").find("collections.OrderedDict"), std::string::npos);
  EXPECT_NE(pickle_error("(" + pickled_text("storage") + "ctorch\nFloatStorage\n" + pickled_text("0") + pickled_text("cpu") +
                         "K\x02tQ.")
                .find("without a tensor"),
            std::string::npos);
}

TEST(Pickle, ProgramsThatDoNotAddUpAreRefused) {
  for (const std::string program : {".",
                                    "0.",
                                    "1.",
                                    "a.",
                                    "]a.",
                                    "(.",
                                    "e.",
                                    "s.",
                                    "}K\x01s.",
                                    "u.",
                                    "h\x05.",
                                    "t.",
                                    "\x85.",
                                    "R.",
                                    "b.",
                                    "\x93.",
                                    "2.",
                                    "q\x01.",
                                    "\xff.",
                                    "]K\x01K\x02u.",
                                    "}(K\x01u.",
                                    "K\x01(K\x02"
                                    "e.",
                                    "Iabc\n.",
                                    "Fx\n.",
                                    "S'x\n.",
                                    "Va\\u0041\n.",
                                    "\x8c\x01\xff.",
                                    "\x80\x09N."}) {
    EXPECT_NE(pickle_error(program), "no error") << program;
  }
}

TEST(Pickle, APickleCutAnywhereIsRefused) {
  PickleTree tree;
  tree.root = tree.dict({{tree.key("a"), tree.list({tree.integer(70000), tree.number(0.5), tree.text("x")})},
                         {tree.key("b"), tree.tuple({tree.bytes("\x01\xff"), tree.none()})}});
  const std::string whole = accelerate::detail::write_pickle(*tree.root);
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(unpickle(whole.substr(0, size)), accelerate::detail::PickleCutShort) << size;
  }
  EXPECT_EQ(accelerate::detail::write_pickle(*unpickle(whole).root), whole);
}

TEST(Pickle, CyclesAreRefused) {
  EXPECT_NE(pickle_error("]q\x01h\x01"
                         "a.")
                .find("contains itself"),
            std::string::npos);
  EXPECT_NE(pickle_error("}q\x01K\x01h\x01s.").find("contains itself"), std::string::npos);
  EXPECT_NE(pickle_error("]q\x01(h\x01\x85h\x01"
                         "e.")
                .find("contains itself"),
            std::string::npos);
  EXPECT_NE(pickle_error("ccollections\nOrderedDict\n)Rq\x01}K\x01h\x01sb.").find("contains itself"), std::string::npos);
}

TEST(Pickle, DeepNestingIsRefusedWithoutUsingTheStack) {
  EXPECT_EQ(pickle_error(repeated("]", 300) + repeated("a", 299) + "."), "no error");
  EXPECT_NE(pickle_error(repeated("]", 500) + repeated("a", 499) + ".").find("deeper"), std::string::npos);
  EXPECT_NE(pickle_error(")" + repeated("\x85", 1'000'000) + ".").find("deeper"), std::string::npos);
  EXPECT_NE(pickle_error(repeated("(", 1'000'000) + "N" + repeated("t", 1'000'000) + ".").find("deeper"), std::string::npos);
}

TEST(Pickle, SmallPicklesThatUnfoldWithoutEndAreRefused) {
  // Each list holds the one before it ten times.
  std::string laughs = "]q\x01";
  for (char level = 2; level <= 30; ++level)
    laughs += "](" + repeated(std::string("h") + static_cast<char>(level - 1), 10) + "eq" + level;
  EXPECT_NE(pickle_error(laughs + ".").find("reference bomb"), std::string::npos);
  // One long text, encoded again and again.
  const std::string start = pickled_text(std::string(100'000, 'x')) +
                            "q\x01"
                            "0c_codecs\nencode\nq\x02"
                            "0" +
                            pickled_text("latin1") +
                            "q\x03"
                            "0";
  EXPECT_NE(pickle_error(start + repeated("h\x02h\x01h\x03\x86R0", 10'000) + "N.").find("over and over"), std::string::npos);
  EXPECT_EQ(pickle_error(start + "h\x02h\x01h\x03\x86R."), "no error");
}

TEST(Pickle, LengthsBeyondTheFileTakeNoMemory) {
  using namespace std::string_literals;
  for (const std::string& claim :
       {"X\xff\xff\xff\xff"s, "B\xff\xff\xff\xff"s, "\x8d\xff\xff\xff\xff\xff\xff\xff\x7f"s,
        "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"s, "\x96\xff\xff\xff\xff\xff\xff\xff\xff"s, "\x8b\xff\xff\xff\x7f"s,
        "\x8b\xff\xff\xff\xff"s, "T\xff\xff\xff\xff"s, "r\xff\xff\xff\xffN."s, "j\xff\xff\xff\xff."s}) {
    EXPECT_NE(pickle_error("\x80\x04" + claim), "no error");
  }
}

TEST(Pickle, AKeyGivenTwiceIsRefused) {
  EXPECT_NE(pickle_error("}(" + pickled_text("lr") + "K\x01" + pickled_text("lr") + "K\x02u.").find("lr"), std::string::npos);
  EXPECT_NE(pickle_error("}(K\x01N\x88Nu.").find("duplicate key"), std::string::npos);  // True is 1
  EXPECT_NE(pickle_error("}(K\x01\x85NK\x01\x85Nu.").find("duplicate key"), std::string::npos);
  EXPECT_NE(pickle_error("}]Ns.").find("a list as a key"), std::string::npos);
  EXPECT_NE(pickle_error("}]\x85Ns.").find("a tuple as a key"), std::string::npos);
  EXPECT_EQ(pickle_error("}(K\x01NK\x02N" + pickled_text("1") + "N)Nu."), "no error");
}

TEST(Pickle, NumpyArraysHaveAsManyBytesAsTheirShapeSays) {
  using namespace std::string_literals;
  const auto told = [](const std::string& shape, const std::string& dtype, const std::string& bytes) {
    const std::string size(1, static_cast<char>(bytes.size()));
    return pickle_error(
        "cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x01\x85"
        "C\x01"
        "btR(K\x01" +
        shape + "cnumpy\ndtype\n(" + pickled_text(dtype) + "\x89\x88tR(K\x03" + pickled_text("<") +
        "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x01tb\x89" + "C" + size + bytes + "tb.");
  };
  EXPECT_EQ(told("K\x03\x85", "u4", "abcdabcdabcd"), "no error");
  EXPECT_NE(told("K\x03\x85", "u4", "abcd").find("12 bytes"), std::string::npos);
  EXPECT_NE(told("J\xff\xff\xff\xff\x85", "u4", "abcd").find("invalid size"), std::string::npos);
  EXPECT_NE(told("(J\xff\xff\xff\x7fJ\xff\xff\xff\x7fJ\xff\xff\xff\x7ft", "f8", "").find("invalid size"), std::string::npos);
  EXPECT_NE(told("K\x01\x85", "O8", "12345678").find("plain numbers"), std::string::npos);
}

TEST(Pickle, ObjectsOfClassesThatACallerAllowsAreKeptAndNotRun) {
  const std::string_view allowed[] = {"torch.distributed.checkpoint.metadata.Metadata"};
  const auto tree = read_pickle(
      "\x80\x02"
      "ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}" +
          pickled_text("a") + "K\x01sb.",
      "f", {.objects = allowed});
  EXPECT_EQ(tree.root->object().name, allowed[0]);
  EXPECT_EQ(tree.root->object().state->find("a")->integer(), 1);
}

TEST(PickleWriter, EveryKindComesBackAndKeepsItsSharing) {
  PickleTree tree;
  auto* shared = tree.tuple({tree.number(0.9), tree.number(0.999)});
  accelerate::detail::PickleTensor tensor;
  tensor.storage = "0";
  tensor.dtype = accelerate::detail::find_dtype("bfloat16");
  tensor.storage_elements = 6;
  tensor.sizes = {2, 3};
  tensor.strides = {1, 2};
  tensor.requires_grad = tensor.parameter = true;
  auto* plain = tree.tensor(tensor);
  tensor.parameter = false;
  tensor.conjugated = tensor.negative = true;
  tensor.dtype = accelerate::detail::find_dtype("float8_e5m2");
  accelerate::detail::PickleArray array{"<f8", {1}, tree.bytes("12345678"), false, false};
  accelerate::detail::PickleArray scalar{"|b1", {}, tree.bytes("\x01"), false, true};
  auto* dict = tree.dict({{tree.integer(-5), tree.none()}}, PickleKind::kDefaultDict);
  dict->own_dict().factory = tree.text("builtins.list");
  auto* state = tree.dict({{tree.key("w"), plain}}, PickleKind::kOrderedDict);
  state->own_dict().attributes = tree.dict({{tree.key("_metadata"), tree.none()}});
  tree.root =
      tree.list({shared,
                 shared,
                 plain,
                 tree.tensor(tensor),
                 tree.array(std::move(array)),
                 tree.array(std::move(scalar)),
                 dict,
                 state,
                 tree.dict({{tree.text("a"), tree.integer(2)}}, PickleKind::kCounter),
                 tree.bytes(""),
                 tree.bytes(""),
                 tree.make(PickleKind::kByteArray, std::string("\xf0")),
                 tree.make(PickleKind::kByteArray, std::string()),
                 tree.complex({1, -2}),
                 tree.make(PickleKind::kDevice, std::string("cuda:1")),
                 tree.make(PickleKind::kDevice, std::string("cpu")),
                 tree.make(PickleKind::kSize, accelerate::detail::PickleItems{tree.integer(4)}),
                 tree.make(PickleKind::kLayout, std::string("torch.strided")),
                 tree.make(PickleKind::kDtype, accelerate::detail::find_dtype("float16")),
                 tree.make(PickleKind::kBigInt, std::string(300, '\x11')),
                 tree.make(PickleKind::kSet, accelerate::detail::PickleItems{tree.integer(1)}),
                 tree.make(PickleKind::kSlice, accelerate::detail::PickleItems{tree.none(), tree.integer(1), tree.none()}),
                 tree.integer(INT64_MIN),
                 tree.integer(INT64_MAX),
                 tree.integer(1LL << 31),
                 tree.integer(-(1LL << 31) - 1)});
  const std::string bytes = accelerate::detail::write_pickle(*tree.root);
  const auto again = unpickle(bytes);
  EXPECT_EQ(accelerate::detail::write_pickle(*again.root), bytes);
  const auto& items = again.root->items();
  ASSERT_EQ(items.size(), tree.root->items().size());
  for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items[i]->kind, tree.root->items()[i]->kind) << i;
  EXPECT_EQ(items[0], items[1]);
  EXPECT_EQ(items[7]->find("w"), items[2]);
  EXPECT_TRUE(items[2]->tensor().parameter);
  EXPECT_EQ(items[2]->tensor().strides, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(items[3]->tensor().conjugated && items[3]->tensor().negative);
  EXPECT_EQ(items[3]->tensor().dtype->name, "float8_e5m2");
  EXPECT_EQ(items[6]->dict().factory->text(), "builtins.list");
  EXPECT_NE(items[7]->dict().attributes, nullptr);
  EXPECT_EQ(items[11]->text(), "\xf0");
  EXPECT_EQ(items[14]->text(), "cuda:1");
  for (size_t i = 22; i < 26; ++i) EXPECT_EQ(items[i]->integer(), tree.root->items()[i]->integer());
}

TEST(PickleWriter, ManyItemsComeBackInBatches) {
  for (const size_t count : {1, 2, 999, 1000, 1001, 2000, 2001}) {
    PickleTree tree;
    accelerate::detail::PickleItems items;
    accelerate::detail::PicklePairs pairs;
    for (size_t i = 0; i < count; ++i) {
      items.push_back(tree.text(std::to_string(i)));
      pairs.emplace_back(tree.integer(static_cast<int64_t>(i)), items.back());
    }
    tree.root = tree.list({tree.list(items), tree.dict(pairs), tree.dict(pairs, PickleKind::kOrderedDict)});
    const auto again = unpickle(accelerate::detail::write_pickle(*tree.root));
    EXPECT_EQ(again.root->items()[0]->items().size(), count);
    EXPECT_EQ(again.root->items()[1]->dict().items.size(), count);
    EXPECT_EQ(again.root->items()[2]->dict().items.size(), count);
    EXPECT_EQ(again.root->items()[2]->dict().items.back().second, again.root->items()[0]->items().back());
  }
}

TEST(PickleWriter, ACircleIsAnErrorOfTheProgram) {
  PickleTree tree;
  tree.root = tree.list();
  tree.root->own_items().push_back(tree.root);
  EXPECT_EQ(accelerate::detail::write_pickle(*tree.root).size() > 0, true);  // a reference to itself, which a reader refuses
  tree.root = tree.tuple({nullptr});
  tree.root->own_items()[0] = tree.root;
  EXPECT_THROW(accelerate::detail::write_pickle(*tree.root), accelerate::UsageError);
}

}  // namespace
