#include "parallel/bucket_size.h"
#include "parallel/parallel_nets.h"
#include "support/error_text.h"

namespace {

using namespace parallel_nets;
using accelerate::CommHook;
using accelerate::testing::message_of;

class TogetherDataParallel : public TogetherParallel {};

TEST_F(TogetherDataParallel, GradientsAreTheMeanOverRanksWhateverTheOptions) {
  const std::vector<DdpOptions> kOptions = {
      {},
      {.bucket_cap_mb = 1},
      {.gradient_as_bucket_view = true},
      {.static_graph = true},
      {.find_unused_parameters = true},
      {.find_unused_parameters = true, .gradient_as_bucket_view = true},
      {.find_unused_parameters = true, .static_graph = true},
      {.bucket_cap_mb = 1, .gradient_as_bucket_view = true, .static_graph = true},
      {.comm_wrapper = CommHook::fp16},
      {.bucket_cap_mb = 0},
      {.gradient_predivide_factor = 1},
      {.gradient_as_bucket_view = true, .gradient_predivide_factor = 1.5},
  };
  for (const auto& options : kOptions) {
    torch::manual_seed(rank());  // prepare gives all of them the weights of the first
    Plain net;
    auto model = prepared(net, options);
    for (int step = 0; step < 3; ++step) {
      const auto expected = gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows_of_all())); });
      model.zero_grad(step != 1);
      backward(loss_of(model(rows())));
      expect_close(gradients(*net), expected);
      take_step(*net);
    }
    expect_same_everywhere(net->parameters());
  }
}

TEST_F(TogetherDataParallel, GradientsThatNeedSeveralBucketsAreTheMeanToo) {
  torch::nn::Sequential net(torch::nn::Linear(4, 700), torch::nn::Tanh(), torch::nn::Linear(700, 700), torch::nn::Tanh(),
                            torch::nn::Linear(700, 700), torch::nn::Linear(700, 2));
  auto model = prepared(net, {.bucket_cap_mb = 1});
  for (int step = 0; step < 2; ++step) {  // the second one in rebuilt buckets
    model.zero_grad();
    loss_of(net->forward(rows_of_all())).backward();
    const auto expected = gradients(*net);
    model.zero_grad();
    backward(loss_of(model(rows())));
    expect_close(gradients(*net), expected);
  }
}

TEST_F(TogetherDataParallel, GradientsTravelInSixteenBitsWhenAskedTo) {
  for (const auto& [hook, wrapper, tolerance] :
       {std::tuple{CommHook::fp16, CommHook::no, 2e-3}, std::tuple{CommHook::bf16, CommHook::no, 2e-2},
        std::tuple{CommHook::fp16, CommHook::fp16, 2e-3}, std::tuple{CommHook::fp16, CommHook::bf16, 2e-2}}) {
    Plain net;
    auto model = prepared(net, {.gradient_as_bucket_view = wrapper == CommHook::no, .comm_hook = hook, .comm_wrapper = wrapper});
    for (int step = 0; step < 2; ++step) {
      const auto expected = gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows_of_all())); });
      model.zero_grad();
      backward(loss_of(model(rows())));
      expect_close(gradients(*net), expected, tolerance);
      expect_same_everywhere(gradients(*net));
    }
    if (world() == 1) continue;  // nothing travels
    const auto dtype = wrapper == CommHook::bf16 || hook == CommHook::bf16 ? torch::kBFloat16 : torch::kHalf;
    for (const auto& gradient : gradients(*net)) {
      EXPECT_EQ(gradient.scalar_type(), torch::kFloat);
      EXPECT_TRUE(torch::equal(gradient.to(dtype).to(torch::kFloat), gradient)) << "it has not travelled in 16 bits";
    }
  }
}

TEST_F(TogetherDataParallel, APredivisionKeepsSixteenBitsFromOverflowingAndFromVanishing) {
  if (world() == 1) return;  // nothing travels
  const auto gradient = [](double size, double factor) {
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    auto model = prepared(net, {.comm_hook = CommHook::fp16, .gradient_predivide_factor = factor});
    backward(model(torch::ones({1, 1})).sum() * size);
    return net->weight.grad().item<double>();
  };
  EXPECT_EQ(gradient(40000, 1), INFINITY) << "the sum is more than half precision has";
  EXPECT_NEAR(gradient(40000, 0), 40000, 40);
  const double least = std::pow(2.0, -24);  // that half precision has
  EXPECT_EQ(gradient(least, 1), least);
  EXPECT_EQ(gradient(least, 64), 0) << "it vanishes when it is divided first";
}

TEST_F(TogetherDataParallel, BuffersAreThoseOfTheMainProcessAtEveryForwardPass) {
  for (const bool sent : {true, false}) {
    Normalised net;
    auto model = prepared(net, {.broadcast_buffers = sent});
    for (int step = 0; step < 3; ++step) backward(loss_of(model(rows())));
    // The last forward pass has moved them on from what it found; the next one evaluates with those of the main process.
    model.eval();
    torch::NoGradGuard no_grad;
    model(rows());
    const auto mean = net->norm->running_mean;
    const bool same = torch::allclose(accelerate::broadcast(state(), mean), mean);
    EXPECT_EQ(same, sent || rank() == 0);
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 3);
  }
}

/// A buffer whose elements are one in memory.
struct ExpandedImpl : torch::nn::Module {
  explicit ExpandedImpl(double value) {
    linear = register_module("linear", torch::nn::Linear(4, 2));
    scale = register_buffer("scale", torch::full({1, 2}, value).expand({3, 2}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear(x) * scale; }
  torch::nn::Linear linear{nullptr};
  torch::Tensor scale;
};
TORCH_MODULE(Expanded);

TEST_F(TogetherDataParallel, ExpandedBuffersAreSentToo) {
  Expanded net(1.0 + rank());
  auto model = prepared(net);
  EXPECT_TRUE(torch::equal(net->scale, torch::ones({3, 2}))) << net->scale;
  torch::NoGradGuard no_grad;
  net->scale.select(0, 0).fill_(5.0 + rank());
  model(rows());
  EXPECT_TRUE(torch::equal(net->scale, torch::full({3, 2}, 5.0))) << net->scale;
}

TEST_F(TogetherDataParallel, BuffersAreSentAtTheStartUnlessTheyAreNever) {
  for (const bool sent : {true, false}) {
    Normalised net;
    net->norm->running_mean.fill_(rank());
    auto model = prepared(net, {.broadcast_buffers = sent});
    EXPECT_EQ(net->norm->running_mean[0].item<int>(), sent ? 0 : rank());
  }
}

TEST_F(TogetherDataParallel, ParametersWithoutAGradientAreNamedAtTheNextForwardPass) {
  if (world() == 1) return;  // nothing is sent, so nothing is missed
  Heads net;
  auto model = prepared(net);
  backward(loss_of(model(rows(), false)));
  const auto message = message_of<accelerate::UsageError>([&] { model(rows(), false); });
  EXPECT_NE(message.find("on rank " + std::to_string(rank()) + " gave no gradient to right.weight, right.bias, so"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("find_unused_parameters"), std::string::npos);
}

TEST_F(TogetherDataParallel, UnusedParametersAreFoundWhicheverEachProcessLeavesOut) {
  for (const bool as_view : {false, true}) {
    Heads net;
    auto model = prepared(net, {.find_unused_parameters = true, .gradient_as_bucket_view = as_view});
    for (int step = 0; step < 3; ++step) {
      const auto uses_right = [step](int r) { return (r + step) % 2 == 1; };
      const auto expected = gradients_alone(net, [&](auto& twin) {
        auto total = torch::zeros({});
        for (int r = 0; r < world(); ++r) total = total + loss_of(twin.forward(rows(r), uses_right(r))) / world();
        return total;
      });
      model.zero_grad();
      backward(loss_of(model(rows(), uses_right(rank()))));
      expect_close(gradients(*net), expected);  // undefined where no process has used it
    }
  }
}

TEST_F(TogetherDataParallel, OutputsThatTakeNoPartInTheLossAreUnusedToo) {
  StructHeads net;
  auto model = prepared(net, {.find_unused_parameters = true});
  for (int step = 0; step < 2; ++step) {
    model.zero_grad();
    const auto outputs = model(rows());
    EXPECT_TRUE(torch::equal(outputs.more.front(), rows()));
    backward(loss_of(outputs.left));
    EXPECT_FALSE(net->right->weight.grad().defined());
    const auto expected = gradients_alone(net, [](auto& twin) { return loss_of(twin.forward(rows_of_all()).left); });
    expect_close(gradients(*net), expected);
  }
}

TEST_F(TogetherDataParallel, AStaticGraphMayLeaveParametersOutAndUseOthersTwice) {
  struct TwiceImpl : HeadsImpl {
    torch::Tensor forward(const torch::Tensor& x) { return left(torch::tanh(body(x))) + left(torch::sin(body(x))); }
  };
  const torch::nn::ModuleHolder<TwiceImpl> net(std::make_shared<TwiceImpl>());
  auto model = prepared(net, {.static_graph = true});
  for (int step = 0; step < 3; ++step) {
    const auto expected = gradients_alone(net, [](auto& twin) { return 2 * loss_of(twin.forward(rows_of_all())); });
    model.zero_grad();
    {
      auto scope = model.no_sync();
      backward(loss_of(model(rows())));
    }
    backward(loss_of(model(rows())));
    expect_close(gradients(*net), expected);
  }
}

TEST_F(TogetherDataParallel, ResultsWithoutTensorsCannotBeSearchedForUnusedParameters) {
  struct HiddenTensor {
    explicit HiddenTensor(torch::Tensor inside) : tensor(std::move(inside)) {}
    torch::Tensor tensor;
  };
  struct OpaqueNet : HeadsImpl {
    HiddenTensor forward(const torch::Tensor& x) { return HiddenTensor(left(torch::tanh(body(x))) + right(torch::sin(body(x)))); }
  };
  auto net = std::make_shared<OpaqueNet>();
  Model<OpaqueNet> model(net, state(), {}, std::source_location::current());
  backward(loss_of(model(rows()).tensor));
  expect_same_everywhere(gradients(*net));
  Model<OpaqueNet> searched(std::make_shared<OpaqueNet>(), state(), {.ddp = {.find_unused_parameters = true}},
                            std::source_location::current());
  if (world() == 1) {
    EXPECT_NO_THROW(searched(rows()));
  } else {
    EXPECT_THROW(searched(rows()), accelerate::UsageError);
  }
}

TEST_F(TogetherDataParallel, SharedParametersAreReducedOnceAndFrozenOnesNever) {
  struct TiedImpl : torch::nn::Module {
    TiedImpl() {
      first = register_module("first", torch::nn::Linear(4, 4));
      again = register_module("again", first.ptr());
      frozen = register_module("frozen", torch::nn::Linear(4, 4));
      for (auto& parameter : frozen->parameters()) parameter.requires_grad_(false);
    }
    torch::Tensor forward(const torch::Tensor& x) { return again(frozen(torch::tanh(first(x)))); }
    torch::nn::Linear first{nullptr}, again{nullptr}, frozen{nullptr};
  };
  auto net = std::make_shared<TiedImpl>();
  Model<TiedImpl> model(net, state(), {}, std::source_location::current());
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    loss_of(net->forward(rows_of_all())).backward();
    const auto expected = gradients(*net);
    net->zero_grad();
    backward(loss_of(model(rows())));
    expect_close(gradients(*net), expected);
    EXPECT_FALSE(net->frozen->weight.grad().defined());
  }
}

/// One parameter and nothing else.
struct LoneWeight : torch::nn::Module {
  explicit LoneWeight(const at::Tensor& tensor) : weight(register_parameter("weight", tensor)) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
  at::Tensor weight;
};

TEST_F(TogetherDataParallel, AWeightMayLieInMemoryOtherwiseThanOnOtherRanks) {
  const at::Tensor numbers = torch::arange(6, torch::kFloat);
  const bool transposed = rank() == 0;
  auto net = std::make_shared<LoneWeight>(transposed ? numbers.view({3, 2}).t() : torch::zeros({2, 3}));
  EXPECT_EQ(net->weight.is_contiguous(), !transposed);
  accelerator().prepare(net);
  EXPECT_TRUE(net->weight.equal(numbers.view({3, 2}).t())) << net->weight;
}

TEST_F(TogetherDataParallel, ALoneBufferMayBeOfADtypeThatTheBackendDoesNotKnow) {
  struct LoneBuffer : torch::nn::Module {
    explicit LoneBuffer(int number) : buffer(register_buffer("buffer", torch::full({3}, number, torch::kShort))) {}
    at::Tensor buffer;
  };
  auto net = std::make_shared<LoneBuffer>(5 + rank());
  accelerator().prepare_model(net);
  EXPECT_TRUE(net->buffer.equal(torch::full({3}, 5, torch::kShort))) << net->buffer;
}

TEST_F(TogetherDataParallel, ModelsThatDifferAreNamed) {
  if (world() == 1) return;
  const bool odd = accelerator().is_last_process();
  const auto shapes = message_of<accelerate::DistributedError>([&] { prepared(torch::nn::Linear(odd ? 5 : 4, 2)); });
  EXPECT_NE(shapes.find("weight float32[2, 5] where the main process has weight float32[2, 4]"), std::string::npos) << shapes;
  const auto frozen = message_of<accelerate::DistributedError>([&] {
    torch::nn::Linear net(4, 2);
    net->weight.requires_grad_(!odd);
    prepared(net);
  });
  EXPECT_NE(frozen.find("weight frozen where the main process has nothing"), std::string::npos) << frozen;
}

TEST_F(TogetherDataParallel, SparseGradientsAreTheMeanToo) {
  struct SparseNet : torch::nn::Module {
    SparseNet() {
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true)));
      linear = register_module("linear", torch::nn::Linear(3, 2));
    }
    torch::Tensor forward(const torch::Tensor& x) { return linear(table(x)); }
    torch::nn::Embedding table{nullptr};
    torch::nn::Linear linear{nullptr};
  };
  auto net = std::make_shared<SparseNet>();
  Model<SparseNet> model(net, state(), {}, std::source_location::current());
  for (int step = 0; step < 2; ++step) {
    net->zero_grad();
    auto total = torch::zeros({});
    for (int r = 0; r < world(); ++r) total = total + loss_of(net->forward(torch::tensor({r, r + 1}))) / world();
    total.backward();
    const auto expected = net->table->weight.grad().to_dense();
    net->zero_grad();
    backward(loss_of(model(torch::tensor({rank(), rank() + 1}))));
    expect_close({net->table->weight.grad().to_dense()}, {expected});
  }
}

TEST_F(TogetherDataParallel, AnErrorOfTheUsersOwnInABackwardPassLeavesTheGroupUsable) {
  Plain net;
  auto model = prepared(net);
  EXPECT_THROW(backward(torch::ones({})), c10::Error);
  backward(loss_of(model(rows())));
  expect_same_everywhere(gradients(*net));
}

}  // namespace

TEST(DdpOptions, ValuesThatMeanNothingAreErrors) {
  EXPECT_NO_THROW(accelerate::detail::check_ddp_options(accelerate::DdpOptions{}));
  EXPECT_NO_THROW(accelerate::detail::check_ddp_options({.bucket_cap_mb = 0}));
  EXPECT_THROW(accelerate::detail::check_ddp_options({.gradient_predivide_factor = -1}), accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.gradient_predivide_factor = std::nan("")}), accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.gradient_predivide_factor = INFINITY}), accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.bucket_cap_mb = -3}), accelerate::UsageError);
  EXPECT_THROW(accelerate::detail::check_ddp_options({.comm_hook = static_cast<accelerate::CommHook>(7)}),
               accelerate::UsageError);
}

TEST(BucketSize, SlowStartsNeedLargeBucketsAndMeasurementsThatAreNonsenseNone) {
  using accelerate::detail::bucket_mb_for;
  constexpr double kMiBPerSecond = 1024 * 1024;
  EXPECT_EQ(bucket_mb_for({.latency = 1e-3, .bytes_per_second = 950 * kMiBPerSecond}), 9);
  EXPECT_EQ(bucket_mb_for({.latency = 1e-5, .bytes_per_second = 1000 * kMiBPerSecond}), 1);
  EXPECT_EQ(bucket_mb_for({.latency = 1, .bytes_per_second = 1000 * kMiBPerSecond}), 100);
  EXPECT_EQ(bucket_mb_for({.latency = 1e-3, .bytes_per_second = -5}), 25);
  EXPECT_EQ(bucket_mb_for({.latency = 1e-3, .bytes_per_second = std::nan("")}), 25);
  EXPECT_EQ(bucket_mb_for({.latency = 1e-3, .bytes_per_second = INFINITY}), 100);
}
