#pragma once

#include <torch/torch.h>

#include <array>
#include <vector>

// A ResNet-18 for images of 32 x 32: a stem of 3 x 3, four stages of two blocks, the mean over the image, a linear layer.
namespace bench {

inline torch::nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

class BasicBlock : public torch::nn::Module {
 public:
  BasicBlock(int64_t in, int64_t out, int64_t stride)
      : conv1_(convolution(in, out, 3, stride)), conv2_(convolution(out, out, 3, 1)), norm1_(out), norm2_(out) {
    register_module("conv1", conv1_);
    register_module("norm1", norm1_);
    register_module("conv2", conv2_);
    register_module("norm2", norm2_);
    if (in == out && stride == 1) return;
    shortcut_ = register_module("shortcut", convolution(in, out, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(out));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = norm2_(conv2_(torch::relu(norm1_(conv1_(x)))));
    return torch::relu(inner + (shortcut_ ? shortcut_norm_(shortcut_(x)) : x));
  }

 private:
  torch::nn::Conv2d conv1_, conv2_, shortcut_{nullptr};
  torch::nn::BatchNorm2d norm1_, norm2_, shortcut_norm_{nullptr};
};

class SmallResNet : public torch::nn::Module {
 public:
  explicit SmallResNet(const std::array<int64_t, 4>& widths)
      : stem_(convolution(3, widths[0], 3, 1)), norm_(widths[0]), head_(widths[3], 10) {
    register_module("stem", stem_);
    register_module("norm", norm_);
    register_module("blocks", blocks_);
    int64_t in = widths[0];
    for (const int64_t width : widths) {
      blocks_->push_back(std::make_shared<BasicBlock>(in, width, width == widths[0] ? 1 : 2));
      blocks_->push_back(std::make_shared<BasicBlock>(width, width, 1));
      in = width;
    }
    register_module("head", head_);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    auto x = torch::relu(norm_(stem_(images)));
    for (const auto& block : *blocks_) x = block->as<BasicBlock>()->forward(x);
    return head_(x.mean({2, 3}));
  }

 private:
  torch::nn::Conv2d stem_;
  torch::nn::BatchNorm2d norm_;
  torch::nn::ModuleList blocks_;
  torch::nn::Linear head_;
};

/// Python's model.to(memory_format=torch.channels_last), which LibTorch's modules do not have.
inline void to_channels_last(torch::nn::Module& module) {
  for (auto& each : module.parameters()) {
    if (each.dim() == 4) each.set_data(each.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  }
}

}  // namespace bench
