// What operators and threads may do with weights whose bytes come and go.
#include <accelerate/accelerate.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "big_model/towers.h"
#include "support/error_text.h"

namespace fs = std::filesystem;
using towers::empty_tower;
using towers::Saved;
using towers::Tower;

namespace {

using accelerate::testing::message_of;

/// A tower on disk with room for one layer at a time.
struct OnDisk {
  explicit OnDisk(const Saved& saved, accelerate::LoadCheckpointOptions options = {.offload_budget = 1}) : tower(empty_tower()) {
    options.device_map = "disk";
    model.emplace(accelerate::load_checkpoint_and_dispatch(tower, saved.checkpoint(), options));
  }
  Tower tower;
  std::optional<accelerate::DispatchedModel<towers::TowerImpl>> model;
};

void expect_part(const std::string& part, const std::string& text) { EXPECT_NE(text.find(part), std::string::npos) << text; }

TEST(OffloadedWeights, GradientsAreThoseOfTheResidentModel) {
  const Saved saved;
  OnDisk disk(saved);
  saved.tower->zero_grad();
  saved.tower->forward(saved.tokens).pow(2).sum().backward();
  for (int pass = 0; pass < 2; ++pass) {
    disk.tower->zero_grad();
    (*disk.model)(saved.tokens).pow(2).sum().backward();
    const auto expected = saved.tower->named_parameters();
    for (const auto& parameter : disk.tower->named_parameters()) {
      EXPECT_TRUE(torch::equal(parameter.value().grad(), expected[parameter.key()].grad())) << parameter.key();
    }
  }
}

TEST(OffloadedWeights, AreDroppedAgainDuringABackwardPass) {
  const Saved saved;
  OnDisk disk(saved);
  (*disk.model)(saved.tokens).sum().backward();
  // The embedding's, the largest layer; a unit more than that would be another layer kept.
  EXPECT_LT(disk.model->offload_counts().peak_bytes, 17000U);
}

TEST(OffloadedWeights, TheOrderOfABackwardPassIsLearned) {
  const Saved saved;
  OnDisk disk(saved, {.offload_budget = 40000});
  for (int pass = 0; pass < 4; ++pass) {
    const auto before = disk.model->offload_counts();
    (*disk.model)(saved.tokens).sum().backward();
    const auto after = disk.model->offload_counts();
    if (pass == 3) {
      EXPECT_EQ(after.prefetch_misses - before.prefetch_misses, 0) << after.loads - before.loads << " loads";
    }
  }
}

TEST(OffloadedWeights, MemoryStaysInTheBudgetAndIsUsed) {
  const Saved saved;
  OnDisk disk(saved, {.offload_budget = 110000});
  const torch::NoGradGuard no_grad;
  for (int pass = 0; pass < 3; ++pass) (*disk.model)(saved.tokens);
  const auto counts = disk.model->offload_counts();
  EXPECT_LE(counts.peak_bytes, 110000U);
  const auto before = counts.bytes_read;
  (*disk.model)(saved.tokens);
  uint64_t all = 0;
  for (const auto& parameter : disk.tower->parameters()) all += parameter.nbytes();
  // What fits stays: only the rest is read again.
  EXPECT_LT(disk.model->offload_counts().bytes_read - before, all - 30000);
}

TEST(OffloadedWeights, SeveralThreadsUseOneModel) {
  const Saved saved;
  OnDisk disk(saved, {.offload_budget = 40000});
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 25; ++pass) wrong += !torch::equal((*disk.model)(saved.tokens), saved.answer);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OffloadedWeights, SeveralThreadsTrainOneModel) {
  const Saved saved;
  OnDisk disk(saved, {.offload_budget = 40000});
  saved.tower->zero_grad();
  const auto expected = torch::autograd::grad({saved.tower->forward(saved.tokens).sum()}, saved.tower->parameters());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int pass = 0; pass < 8; ++pass) {
        const auto gradients = torch::autograd::grad({(*disk.model)(saved.tokens).sum()}, disk.tower->parameters());
        for (size_t j = 0; j < gradients.size(); ++j) wrong += !torch::equal(gradients[j], expected[j]);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(OffloadedWeights, AnErrorInTheMiddleOfAForwardPassLeavesTheModelUsable) {
  const Saved saved;
  OnDisk disk(saved);
  const torch::NoGradGuard no_grad;
  EXPECT_ANY_THROW(disk.tower->blocks->ptr<towers::BlockImpl>(1)->forward(torch::ones({2, 7})));
  EXPECT_ANY_THROW((*disk.model)(torch::full({1, 2}, 100000)));
  EXPECT_TRUE(torch::equal((*disk.model)(saved.tokens), saved.answer));
}

TEST(OffloadedWeights, MayBeUsedInAnyOrderAndMoreThanOnce) {
  const Saved saved;
  OnDisk disk(saved, {.offload_budget = 30000});
  const torch::NoGradGuard no_grad;
  torch::manual_seed(3);
  for (int round = 0; round < 60; ++round) {
    const int64_t i = torch::randint(4, {1}).item<int64_t>(), j = torch::randint(4, {1}).item<int64_t>();
    const auto use = [&](Tower& tower) {
      auto x = tower->embedding(saved.tokens);
      x = tower->blocks->ptr<towers::BlockImpl>(static_cast<size_t>(i))->forward(x);
      x = x + tower->blocks->ptr<towers::BlockImpl>(static_cast<size_t>(j))->forward(x);
      return tower->blocks->ptr<towers::BlockImpl>(static_cast<size_t>(i))->forward(x).matmul(tower->embedding->weight.t());
    };
    EXPECT_TRUE(torch::equal(use(disk.tower), use(saved.tower)));
  }
}

TEST(OffloadedWeights, UnderAutocastGiveTheSameAndLeaveNoCasts) {
  const Saved saved;
  OnDisk disk(saved);
  const auto run = [&](auto&& model) {
    const accelerate::Accelerator accelerator({.cpu = true, .mixed_precision = accelerate::Precision::bf16});
    const auto casting = accelerator.autocast();
    return model(saved.tokens);
  };
  const torch::NoGradGuard no_grad;
  const auto expected = run([&](const torch::Tensor& tokens) { return saved.tower->forward(tokens); });
  EXPECT_TRUE(torch::equal(run(*disk.model), expected));
  EXPECT_LT(disk.model->offload_counts().peak_bytes, 17000U);
}

TEST(OffloadedWeights, WorkInInferenceModeAndWithoutGradients) {
  const Saved saved;
  OnDisk disk(saved);
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(torch::equal((*disk.model)(saved.tokens), saved.answer));
  }
  EXPECT_TRUE(torch::equal((*disk.model)(saved.tokens).detach(), saved.answer));
}

TEST(OffloadedWeights, OfACheckpointAreNotChanged) {
  const Saved saved;
  OnDisk disk(saved);
  const std::string error = message_of<std::exception>([&] {
    const torch::NoGradGuard no_grad;
    disk.tower->head->weight.mul_(2);
  });
  expect_part("head.weight", error);
  expect_part("cannot be changed in place", error);
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal((*disk.model)(saved.tokens), saved.answer));
}

TEST(OffloadedWeights, InAFolderOfTheirOwnCanBeTrained) {
  const Saved saved;
  Tower twin(100, 32, 4);
  accelerate::load_state_dict(*twin, accelerate::state_dict(*saved.tower));
  const auto model = accelerate::disk_offload(twin, saved.offload(), {.offload_budget = 1});
  EXPECT_TRUE(accelerate::has_offloaded_params(*model));
  torch::optim::SGD resident(saved.tower->parameters(), 0.1), offloaded(twin->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    for (auto* optimizer : {&resident, &offloaded}) optimizer->zero_grad();
    const auto expected = saved.tower->forward(saved.tokens).pow(2).mean(), loss = model(saved.tokens).pow(2).mean();
    EXPECT_EQ(loss.item<float>(), expected.item<float>()) << step;
    expected.backward();
    loss.backward();
    for (auto* optimizer : {&resident, &offloaded}) optimizer->step();
  }
  model.release_memory();
  const auto files = accelerate::load_offloaded_weights(saved.offload());
  for (const auto& [name, tensor] : accelerate::state_dict(*saved.tower)) {
    if (name == "scale") continue;  // a buffer stays
    EXPECT_TRUE(torch::equal(files.at(name), tensor)) << name;
  }
}

TEST(OffloadedWeights, ViewsAndCopiesAreRight) {
  const Saved saved;
  OnDisk disk(saved);
  const torch::NoGradGuard no_grad;
  const auto& weight = disk.tower->blocks->ptr<towers::BlockImpl>(2)->up->weight;
  const auto& real = saved.tower->blocks->ptr<towers::BlockImpl>(2)->up->weight;
  const auto view = weight.t().narrow(0, 1, 5), other = weight.reshape({32, 128}), row = weight[3];
  disk.model->release_memory();
  EXPECT_TRUE(torch::equal(view.clone(), real.t().narrow(0, 1, 5)));
  EXPECT_TRUE(torch::equal(other + 1, real.reshape({32, 128}) + 1));
  EXPECT_TRUE(torch::equal(torch::cat({row, row}), torch::cat({real[3], real[3]})));
  EXPECT_TRUE(torch::equal(weight.to(torch::kDouble), real.to(torch::kDouble)));
  EXPECT_TRUE(torch::equal(weight.index({torch::tensor({1, 2})}), real.index({torch::tensor({1, 2})})));
  EXPECT_EQ(weight.sum().item<float>(), real.sum().item<float>());
}

TEST(OffloadedWeights, APointerToThemNeedsAScope) {
  const Saved saved;
  OnDisk disk(saved);
  disk.model->release_memory();
  const auto& weight = disk.tower->head->weight;
  const auto has_messages = [](auto& storage) {
    return requires { storage.clear_data_ptr_access_error_msg_(); };
  };
  if (has_messages(*weight.storage().unsafeGetStorageImpl())) {
    const std::string error = message_of<std::exception>([&] { weight.data_ptr(); });
    expect_part("head.weight", error);
    expect_part("materialized", error);
  } else {  // LibTorch 2.11
    EXPECT_EQ(weight.data_ptr(), nullptr);
  }
  const auto scope = accelerate::materialized(*disk.tower->head);
  EXPECT_EQ(weight.data_ptr<float>()[5], saved.tower->head->weight.data_ptr<float>()[5]);
}

TEST(OffloadedWeights, CanBeSavedAgain) {
  const Saved saved;
  OnDisk disk(saved);
  for (const bool safe : {true, false}) {
    accelerate::save_weights(accelerate::state_dict(*disk.tower), saved.folder / "again", {.safe_serialization = safe});
    const auto again = accelerate::load_weights(saved.folder / "again");
    for (const auto& [name, tensor] : accelerate::state_dict(*saved.tower))
      EXPECT_TRUE(torch::equal(again.at(name), tensor)) << name;
  }
}

TEST(OffloadedWeights, OutliveTheDispatchedModel) {
  const Saved saved;
  Tower tower = empty_tower();
  accelerate::load_checkpoint_in_model(tower, saved.checkpoint(), {.device_map = "disk", .offload_budget = 1});
  fs::remove_all(saved.checkpoint());
  const torch::NoGradGuard no_grad;
  EXPECT_TRUE(torch::equal(tower->forward(saved.tokens), saved.answer)) << "the file is open, and may be removed";
  tower->to(torch::kDouble);
  EXPECT_FALSE(accelerate::has_offloaded_params(*tower));
  EXPECT_TRUE(torch::allclose(tower->forward(saved.tokens).to(torch::kFloat), saved.answer, 1e-4, 1e-5));
}

TEST(OffloadedWeights, AFileThatIsChangedOrCutIsAnErrorAndNotWrongNumbers) {
  for (const bool cut : {false, true}) {
    const Saved saved;
    OnDisk disk(saved);
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal((*disk.model)(saved.tokens), saved.answer));
    std::string file;
    for (const auto& entry : fs::directory_iterator(saved.checkpoint())) {
      if (entry.path().extension() != ".safetensors") continue;
      file = entry.path();
      if (cut) {
        fs::resize_file(file, fs::file_size(file) - 100);
      } else {
        fs::last_write_time(file, fs::last_write_time(file) + std::chrono::seconds(5));
      }
    }
    disk.model->release_memory();
    const std::string error = message_of<std::exception>([&] { (*disk.model)(saved.tokens); });
    expect_part("model-0000", error);
    expect_part("changed", error);
    expect_part("changed", message_of<std::exception>([&] { (*disk.model)(saved.tokens); }));
  }
}

TEST(OffloadedWeights, AFileThatIsChangedOrCutWhileItIsReadIsAnErrorAndNotWrongNumbers) {
  const TemporaryFolder folder;
  torch::nn::Linear resident(2048, 4096);  // of several parts
  accelerate::save_weights(accelerate::state_dict(*resident), folder / "checkpoint");
  accelerate::offload_state_dict(folder / "offloaded", accelerate::state_dict(*resident));
  const torch::NoGradGuard no_grad;
  const auto input = torch::randn({1, 2048});
  const auto answer = resident(input);
  const std::string zeros(4096, 0);
  for (int round = 0; round < 40; ++round) {
    const bool cut = round % 2, offloaded = round % 4 > 1;
    fs::remove_all(folder / "copy");
    fs::copy(folder / (offloaded ? "offloaded" : "checkpoint"), folder / "copy");
    const fs::path file = folder / "copy" / (offloaded ? "weight.dat" : "model.safetensors");
    fs::last_write_time(file, fs::last_write_time(file) - std::chrono::seconds(10));  // some file systems count whole seconds
    torch::nn::Linear layer(2048, 4096);
    auto model = accelerate::load_checkpoint_and_dispatch(layer, file.parent_path(), {.device_map = "disk"});
    EXPECT_TRUE(torch::equal(model(input), answer));
    model.release_memory();
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      if (cut) return fs::resize_file(file, 1 << 20);
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      for (size_t at = 1 << 20; at < fs::file_size(file); at += 1 << 20)
        bytes.seekp(at - zeros.size()).write(zeros.data(), zeros.size());
    });
    try {
      EXPECT_TRUE(torch::equal(model(input), answer));
    } catch (const accelerate::CheckpointError& error) {
      expect_part(file.filename().string(), error.what());
    }
    other.join();
    model.release_memory();
    expect_part("changed", message_of<std::exception>([&] { model(input); }));
  }
}

}  // namespace
