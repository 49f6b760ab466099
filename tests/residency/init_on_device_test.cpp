// Modules that are made on a device of one's choice.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/other_device.h"
#include "support/together.h"

namespace {

/// A module whose constructor does what constructors do.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(const torch::Tensor& given = {}) {
    linear = register_module("linear", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    bias = register_parameter("bias", torch::full({4}, 0.5));
    scaled = register_parameter("scaled", torch::tensor({1.0, 2.0}).mul(3));
    made = register_buffer("made", torch::arange(4));
    derived = register_buffer("derived", torch::arange(4).to(torch::kFloat).div(4).pow(2));
    mixed = register_buffer("mixed", torch::tensor({1.0f, 2.0f, 3.0f, 4.0f}) * torch::ones({4}) + 1);
    written = register_buffer("written", torch::tensor({7.0, 8.0}));
    sum = derived.sum().item<double>();
    if (!given.defined()) return;
    torch::NoGradGuard no_grad;
    given.mul_(2);
  }

  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor bias, scaled, made, derived, mixed, written;
  double sum = 0;
};
TORCH_MODULE(Table);

Table table_on(c10::Device device, std::optional<bool> include_buffers, const torch::Tensor& given = {}) {
  const accelerate::InitOnDevice scope(device, {.include_buffers = include_buffers});
  return given.defined() ? Table(given) : Table();
}

/// Parameters there, buffers here unless they are included, and the values of a module that is made as always.
void expect_made_on(c10::Device device) {
  const Table usual;
  for (const bool include_buffers : {false, true}) {
    const Table table = table_on(device, include_buffers);
    for (const auto& parameter : table->named_parameters()) {
      EXPECT_EQ(parameter.value().device(), device) << parameter.key();
      EXPECT_TRUE(parameter.value().requires_grad() && parameter.value().is_leaf()) << parameter.key();
      if (parameter.key().find("linear") != std::string::npos) continue;  // which are random
      EXPECT_TRUE(torch::equal(parameter.value().detach().cpu(), usual->named_parameters()[parameter.key()])) << parameter.key();
    }
    EXPECT_LE(table->linear->weight.detach().cpu().abs().max().item<double>(), 1 / std::sqrt(3.0));
    EXPECT_GT(table->linear->weight.detach().cpu().abs().max().item<double>(), 0);
    for (const auto& buffer : table->named_buffers()) {
      const bool there = include_buffers && buffer.key() != "written";
      EXPECT_EQ(buffer.value().device(), there ? device : c10::Device(torch::kCPU)) << buffer.key();
      EXPECT_TRUE(torch::equal(buffer.value().cpu(), usual->named_buffers()[buffer.key()])) << buffer.key();
    }
    EXPECT_DOUBLE_EQ(table->sum, usual->sum);
  }
  EXPECT_TRUE(torch::ones({2}).is_cpu()) << "the scope has ended";
}

TEST(InitOnDevice, TheCpuChangesNothing) { expect_made_on(torch::kCPU); }

TEST(InitOnDevice, ConstructorsMayMixWhatTheyMakeWithWhatTheyHave) {
  struct Mixing : torch::nn::Module {
    Mixing() {
      linear = register_module("linear", torch::nn::Linear(3, 4));
      sum = (torch::tensor({1.0, 2.0}) * torch::ones({2}) + 1).sum().item<double>();
    }
    torch::nn::Linear linear{nullptr};
    double sum = 0;
  };
  const accelerate::InitOnDevice scope(other_device());
  const Mixing mixing;
  EXPECT_EQ(mixing.linear->weight.device(), other_device());
  EXPECT_EQ(mixing.sum, 5);
}

TEST(InitOnDevice, BuffersEndWhereTheyWouldHaveBeen) {
  struct Asking : torch::nn::Module {
    Asking() {
      const auto there = torch::TensorOptions().device(torch::kMeta);
      weight = register_parameter("weight", torch::full({4}, 2.0, there));
      made = register_buffer("made", torch::ones({4}, there));
      derived = register_buffer("derived", made.mul(weight.detach()).sum());
      here = register_buffer("here", torch::ones({4}).add(1));
      sum = derived.item<double>();
    }
    torch::Tensor weight, made, derived, here;
    double sum = 0;
  };
  for (const bool include_buffers : {false, true}) {
    const auto asking = [&] {
      const accelerate::InitOnDevice scope(torch::kCPU, {.include_buffers = include_buffers});
      return std::make_unique<Asking>();
    }();
    EXPECT_TRUE(asking->weight.is_cpu());
    EXPECT_EQ(asking->made.is_meta(), !include_buffers);
    EXPECT_EQ(asking->derived.is_meta(), !include_buffers);
    EXPECT_TRUE(asking->here.is_cpu());
    EXPECT_EQ(asking->sum, 8);
  }
}

TEST(InitOnDevice, TheMetaDeviceMeansEmptyWeights) {
  const Table table = table_on(torch::kMeta, {});
  EXPECT_TRUE(table->linear->weight.is_meta());
  EXPECT_TRUE(table->bias.is_meta());
  EXPECT_TRUE(torch::equal(table->derived, Table()->derived));
}

class TogetherCudaInit : public Together {
 protected:
  const c10::Device gpu{torch::kCUDA, 0};
};

TEST_F(TogetherCudaInit, ParametersAreMadeThereAndBuffersAreNot) { expect_made_on(gpu); }

TEST_F(TogetherCudaInit, TensorsFromOutsideStayWhereTheyAre) {
  const auto given = torch::ones({3}, torch::requires_grad());
  const Table table = table_on(gpu, {}, given);
  EXPECT_TRUE(given.is_cpu());
  EXPECT_EQ(given.sum().item<double>(), 6);
}

TEST_F(TogetherCudaInit, RecurrentLayersAreMadeThere) {
  const accelerate::InitOnDevice scope(gpu);
  const torch::nn::LSTM lstm(4, 2);
  for (const auto& parameter : lstm->parameters()) EXPECT_TRUE(parameter.is_cuda());
}

}  // namespace
