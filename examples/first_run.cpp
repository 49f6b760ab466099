// The first run: a small network learns to separate two spirals, on as many processes as you like, while you watch.
//   accelerate launch --num_processes 2 --cpu first_run [FOLDER]   FOLDER is where the weights go
#include <accelerate/accelerate.h>
#include <torch/torch.h>
#include <iostream>

torch::nn::Sequential make_net() {
  using torch::nn::Linear;
  return torch::nn::Sequential(Linear(2, 64), torch::nn::SiLU(), Linear(64, 64), torch::nn::SiLU(), Linear(64, 2));
}

// Points on two arms that wind around each other, one class each, with a little noise.
accelerate::TensorDataset spirals(int64_t length, uint64_t seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  auto arm = torch::randint(0, 2, {length}, generator, torch::kLong);
  auto radius = torch::rand({length}, generator).sqrt();
  auto angle = 3 * M_PI * radius + M_PI * arm;
  auto points = torch::stack({radius * angle.cos(), radius * angle.sin()}, 1);
  return {points + 0.02 * torch::randn({length, 2}, generator), arm};
}

// The share of samples that are classified correctly. Every process classifies its shard; each sample counts once.
template <class Model, class Loader>
double accuracy(accelerate::Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  int64_t right = 0, seen = 0;
  for (auto& [points, arms] : loader) {
    auto [predictions, targets] = accelerator.gather_for_metrics(model(points).argmax(1), arms);
    right += (predictions == targets).sum().template item<int64_t>();
    seen += targets.size(0);
  }
  return double(right) / seen;
}

// The class that the network gives to every point of the plane between -1 and 1.
void draw(torch::nn::Sequential& net, int64_t rows, int64_t columns) {
  torch::NoGradGuard no_grad;
  auto grid = torch::meshgrid({torch::linspace(1, -1, rows), torch::linspace(-1, 1, columns)}, "ij");
  auto arms = net->forward(torch::stack({grid[1], grid[0]}, -1)).argmax(-1);
  for (int64_t row = 0; row < rows; ++row) {
    std::string line = "  ";
    for (int64_t column = 0; column < columns; ++column) line += arms[row][column].item<int64_t>() ? '#' : '.';
    std::cout << line << "\n";
  }
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "first_run_weights";
  constexpr int64_t epochs = 8, points = 4000;
  accelerate::set_seed(42);
  accelerate::Accelerator accelerator;

  auto net = make_net();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  accelerate::DataLoader train(spirals(points, 1), {.batch_size = 32, .shuffle = true});
  accelerate::DataLoader validation(spirals(1001, 2), {.batch_size = 128});
  auto [model, optimizer, train_loader, validation_loader] = accelerator.prepare(net, adamw, train, validation);

  accelerator.print("world size {}, {} points, accuracy before training {:.3f}", accelerator.num_processes(), points,
                    accuracy(accelerator, model, validation_loader));
  accelerate::ProgressBar bar(
      {.description = "training", .total = epochs * train_loader.size(), .disable = !accelerator.is_local_main_process()});
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    auto sum = torch::zeros({});
    for (auto& [inputs, arms] : train_loader) {
      auto loss = torch::cross_entropy_loss(model(inputs), arms);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      sum += loss.detach().cpu();
      bar.set_postfix(accelerate::format("loss {:.3f}", loss));
      bar.update();
    }
    const auto loss = accelerator.reduce(sum / train_loader.size(), accelerate::Reduction::mean);  // the mean over all processes
    accelerator.print("epoch {}  loss {:.4f}  accuracy {:.3f}", epoch, loss, accuracy(accelerator, model, validation_loader));
  }
  bar.close();

  // One process writes a safetensors file, and a new network reads it.
  accelerator.save_model(model, folder);
  if (accelerator.is_main_process()) {
    auto reloaded = make_net();
    accelerate::load_state_dict(*reloaded, accelerate::load_weights(folder));
    std::cout << "Weights saved to " << folder << "/model.safetensors.\n"
              << "Loaded into a new network, they divide the plane like this:\n";
    draw(reloaded, 17, 48);
  }
  accelerator.end_training();
}
