// Text from a checkpoint that transformers wrote: GPT-2, Llama or Mixtral with safetensors and a byte-level tokenizer.json.
//   generate MODEL_FOLDER "prompt" --max_new_tokens 32                          the likeliest tokens
//   generate MODEL_FOLDER "prompt" --temperature 0.8 --top_k 50 --top_p 0.9 --seed 7   drawn
//   generate MODEL_FOLDER "prompt" --dtype bfloat16 --device cuda
#include <accelerate/core/error.h>
#include <torch/torch.h>

#include <charconv>
#include <iostream>

#include "models/generation.h"
#include "models/loading.h"
#include "models/tokenizer.h"

namespace {

constexpr const char* kUsage =
    "generate MODEL_FOLDER PROMPT [--max_new_tokens N] [--temperature T] [--top_k K] [--top_p P] [--seed S]\n"
    "         [--dtype float32|bfloat16|float16] [--device cpu|cuda|cuda:N]\n";

struct Request {
  std::string folder, prompt;
  models::LoadModelOptions load;
  models::GenerationOptions generation;
};

template <class Number>
Number number(const std::string& flag, const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  throw accelerate::UsageError(flag + " was given '" + text + "'; expected a number.");
}

at::ScalarType dtype(const std::string& text) {
  if (text == "float32") return at::kFloat;
  if (text == "bfloat16") return at::kBFloat16;
  if (text == "float16") return at::kHalf;
  throw accelerate::UsageError("--dtype was given '" + text + "'; float32, bfloat16 and float16 are supported.");
}

void set_flag(Request& request, const std::string& flag, const std::string& value) {
  auto& generation = request.generation;
  generation.sample = generation.sample || flag == "--temperature" || flag == "--top_k" || flag == "--top_p";
  if (flag == "--max_new_tokens")
    generation.max_new_tokens = number<int64_t>(flag, value);
  else if (flag == "--temperature")
    generation.temperature = number<double>(flag, value);
  else if (flag == "--top_k")
    generation.top_k = number<int64_t>(flag, value);
  else if (flag == "--top_p")
    generation.top_p = number<double>(flag, value);
  else if (flag == "--seed")
    generation.seed = number<uint64_t>(flag, value);
  else if (flag == "--dtype")
    request.load.dtype = dtype(value);
  else if (flag == "--device")
    request.load.device = c10::Device(value);
  else
    throw accelerate::UsageError("Unknown flag " + flag + ".\n" + kUsage);
}

Request parse(const std::vector<std::string>& words) {
  Request request;
  std::vector<std::string> operands;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      operands.push_back(words[i]);
    } else if (i + 1 < words.size()) {
      set_flag(request, words[i], words[i + 1]);
      ++i;
    } else {
      throw accelerate::UsageError(words[i] + " needs a value.\n" + kUsage);
    }
  }
  if (operands.size() != 2) throw accelerate::UsageError(std::string("Expected a folder and a prompt.\n") + kUsage);
  request.folder = operands[0], request.prompt = operands[1];
  return request;
}

void run(Request request) {
  const models::Tokenizer tokenizer(request.folder + "/tokenizer.json");
  const auto model = models::load_causal_lm(request.folder, request.load);
  request.generation.end_tokens = model->config().end_tokens;
  const auto prompt = torch::tensor(tokenizer.encode(request.prompt), at::kLong).unsqueeze(0).to(request.load.device);
  const auto ids = models::generate(*model, prompt, request.generation)[0].to(at::kCPU);
  std::cout << tokenizer.decode({ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel()}) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv + 1, argv + argc}));
  } catch (const accelerate::UsageError& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << "\n";
    return 1;
  }
}
