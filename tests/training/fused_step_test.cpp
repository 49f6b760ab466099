#include <accelerate/training/accelerated_optimizer.h>
#include <accelerate/training/gradient_state.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace {

using accelerate::AcceleratedOptimizer;
using accelerate::GradientState;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGD;
using torch::optim::SGDOptions;

using Tensors = std::vector<torch::Tensor>;

AcceleratedOptimizer fused(torch::optim::Optimizer& optimizer) {
  return AcceleratedOptimizer(optimizer, std::make_shared<GradientState>());
}

/// A random weight and one that is equal to it.
void add_pair(Tensors& ours, Tensors& theirs, const torch::Tensor& value) {
  ours.push_back(value.detach().clone().requires_grad_());
  theirs.push_back(value.detach().clone().requires_grad_());
}

void give_same_gradients(const Tensors& ours, const Tensors& theirs) {
  for (size_t i = 0; i < ours.size(); ++i) {
    const auto gradient = torch::randn(ours[i].sizes(), ours[i].options().requires_grad(false));
    ours[i].mutable_grad() = gradient.clone();
    theirs[i].mutable_grad() = gradient.clone();
  }
}

double largest_difference(const Tensors& ours, const Tensors& theirs) {
  double largest = 0;
  for (size_t i = 0; i < ours.size(); ++i)
    largest = std::max(largest, (ours[i] - theirs[i]).detach().abs().max().to(torch::kDouble).item<double>());
  return largest;
}

struct FusedPair {
  Tensors ours, theirs;

  explicit FusedPair(const std::vector<std::vector<int64_t>>& shapes = {{5, 7}, {7}, {1}, {2, 3, 4}, {33}, {0}}) {
    torch::manual_seed(3);
    for (const auto& shape : shapes) add_pair(ours, theirs, torch::randn(shape));
    // max() of nothing is an error: the empty one is only stepped.
    for (auto* list : {&ours, &theirs}) empty.push_back(take_empty(*list));
  }
  Tensors with_empty(const Tensors& list, size_t which) const {
    Tensors all = list;
    if (empty[which].defined()) all.push_back(empty[which]);
    return all;
  }
  Tensors empty;

 private:
  static torch::Tensor take_empty(Tensors& list) {
    if (list.empty() || list.back().numel() > 0) return {};
    auto last = list.back();
    list.pop_back();
    return last;
  }
};

/// Steps both a hundred times with the same gradients; `between` may change both in the middle.
template <class Optimizer, class Options>
double difference_after_100_steps(const Options& options, const std::function<void(Optimizer&)>& between = {}) {
  FusedPair pair;
  Optimizer ours(pair.with_empty(pair.ours, 0), options), theirs(pair.with_empty(pair.theirs, 1), options);
  auto prepared = fused(ours);
  for (int i = 0; i < 100; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    if (pair.empty[0].defined()) {
      pair.empty[0].mutable_grad() = torch::zeros({0});
      pair.empty[1].mutable_grad() = torch::zeros({0});
    }
    if (i == 50 && between) {
      between(ours);
      between(theirs);
    }
    prepared.step();
    theirs.step();
  }
  return largest_difference(pair.ours, pair.theirs);
}

TEST(FusedStep, AdamWEqualsTheUnfusedStepOver100Steps) {
  EXPECT_LE((difference_after_100_steps<AdamW>(AdamWOptions(1e-2))), 1e-6);
  EXPECT_LE((difference_after_100_steps<AdamW>(AdamWOptions(1e-2).weight_decay(0))), 1e-6);
  EXPECT_LE((difference_after_100_steps<AdamW>(AdamWOptions(1e-2).amsgrad(true).betas({0.8, 0.95}).eps(1e-6))), 1e-6);
}

TEST(FusedStep, AdamEqualsTheUnfusedStepOver100Steps) {
  EXPECT_LE((difference_after_100_steps<Adam>(AdamOptions(1e-2))), 1e-6);
  EXPECT_LE((difference_after_100_steps<Adam>(AdamOptions(1e-2).weight_decay(0.1))), 1e-6);
  EXPECT_LE((difference_after_100_steps<Adam>(AdamOptions(1e-2).amsgrad(true).weight_decay(0.01))), 1e-6);
}

TEST(FusedStep, SgdEqualsTheUnfusedStepOver100Steps) {
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2))), 1e-6);
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2).weight_decay(0.1))), 1e-6);
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2).momentum(0.9))), 1e-6);
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2).momentum(0.9).dampening(0.5).weight_decay(0.1))), 1e-6);
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2).momentum(0.9).nesterov(true).weight_decay(0.1))), 1e-6);
}

TEST(FusedStep, ChangedLearningRatesAreUsedFromTheNextStepOn) {
  const auto halve = [](auto& optimizer) {
    for (auto& group : optimizer.param_groups()) group.options().set_lr(group.options().get_lr() / 2);
  };
  EXPECT_LE((difference_after_100_steps<AdamW>(AdamWOptions(1e-2), halve)), 1e-6);
  EXPECT_LE((difference_after_100_steps<SGD>(SGDOptions(1e-2).momentum(0.9), halve)), 1e-6);
}

TEST(FusedStep, AmsgradAndMomentumMayBeSwitchedOnLater) {
  EXPECT_LE((difference_after_100_steps<SGD>(
                SGDOptions(1e-2), [](SGD& sgd) { static_cast<SGDOptions&>(sgd.param_groups()[0].options()).momentum(0.9); })),
            1e-6);
  FusedPair pair;
  AdamW adamw(pair.ours);
  auto prepared = fused(adamw);
  give_same_gradients(pair.ours, pair.theirs);
  prepared.step();
  static_cast<AdamWOptions&>(adamw.param_groups()[0].options()).amsgrad(true);
  EXPECT_NO_THROW(prepared.step());
}

TEST(FusedStep, ParametersWithoutGradientAreLeftAloneAndCountNoStep) {
  FusedPair pair;
  AdamW ours(pair.ours), theirs(pair.theirs);
  auto prepared = fused(ours);
  for (int i = 0; i < 30; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    for (const auto* list : {&pair.ours, &pair.theirs}) {
      if (i % 3 != 0) (*list)[1].mutable_grad().reset();
      if (i < 10) (*list)[2].mutable_grad().reset();
    }
    prepared.step();
    theirs.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
  const auto steps_of = [&](size_t i) {
    return static_cast<torch::optim::AdamWParamState&>(*ours.state().at(pair.ours[i].unsafeGetTensorImpl())).step();
  };
  EXPECT_EQ(steps_of(0), 30);
  EXPECT_EQ(steps_of(1), 10);
  EXPECT_EQ(steps_of(2), 20);
}

TEST(FusedStep, MomentumBeginsWithTheFirstGradientOfEachParameter) {
  FusedPair pair;
  const auto options = SGDOptions(1e-2).momentum(0.9).dampening(0.5);
  SGD ours(pair.ours, options), theirs(pair.theirs, options);
  auto prepared = fused(ours);
  for (int i = 0; i < 12; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    for (const auto* list : {&pair.ours, &pair.theirs}) {
      if (i < 5) (*list)[1].mutable_grad().reset();
    }
    prepared.step();
    theirs.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
}

TEST(FusedStep, GroupsKeepTheirOwnOptionsAlsoOnesAddedLater) {
  FusedPair pair;
  const auto groups_of = [](const Tensors& all) {
    return std::vector<OptimizerParamGroup>{{{all[0], all[1]}, std::make_unique<AdamWOptions>(1e-2)},
                                            {{all[2]}, std::make_unique<AdamWOptions>(1e-3)}};
  };
  AdamW ours(groups_of(pair.ours)), theirs(groups_of(pair.theirs));
  auto prepared = fused(ours);
  for (int i = 0; i < 40; ++i) {
    if (i == 20) {
      ours.add_param_group({{pair.ours[3], pair.ours[4]}, std::make_unique<AdamWOptions>(3e-2)});
      theirs.add_param_group({{pair.theirs[3], pair.theirs[4]}, std::make_unique<AdamWOptions>(3e-2)});
    }
    give_same_gradients(pair.ours, pair.theirs);
    prepared.step();
    theirs.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
}

template <class Optimizer, class Options>
void save_and_go_on_in_the_other(const Options& options) {
  FusedPair pair;
  Optimizer ours(pair.ours, options), theirs(pair.theirs, options);
  auto prepared = fused(ours);
  for (int i = 0; i < 10; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    prepared.step();
    theirs.step();
  }
  // Each goes on with what the other has saved.
  std::stringstream of_ours, of_theirs;
  torch::save(ours, of_ours);
  torch::save(theirs, of_theirs);
  torch::load(ours, of_theirs);
  torch::load(theirs, of_ours);
  for (int i = 0; i < 10; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    prepared.step();
    theirs.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
}

TEST(FusedStep, StateIsSavedAndLoadedThroughTheOptimizerItself) {
  save_and_go_on_in_the_other<AdamW>(AdamWOptions(1e-2).amsgrad(true));
  save_and_go_on_in_the_other<Adam>(AdamOptions(1e-2));
  save_and_go_on_in_the_other<SGD>(SGDOptions(1e-2).momentum(0.9));
}

TEST(FusedStep, TheOptimizerMayBeSteppedDirectlyInBetween) {
  FusedPair pair;
  AdamW ours(pair.ours), theirs(pair.theirs);
  auto prepared = fused(ours);
  for (int i = 0; i < 20; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    if (i % 3 == 0) {
      ours.step();
    } else {
      prepared.step();
    }
    theirs.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
}

/// Pairs whose weights, gradients or state lie in memory in ways that the kernels do not follow.
struct StrangePair {
  Tensors ours, theirs;
  StrangePair() {
    torch::manual_seed(5);
    for (auto* list : {&ours, &theirs}) {
      torch::manual_seed(6);
      list->push_back(torch::randn({6, 4}).t().requires_grad_());                // transposed
      list->push_back(torch::randn({6, 8}).slice(1, 0, 8, 2).requires_grad_());  // every second column
      list->push_back(torch::randn({3}).requires_grad_());                       // ordinary
      list->push_back(torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_());
      list->push_back(torch::randn({4, 4}, torch::kDouble).requires_grad_());  // another dtype
      list->push_back(torch::randn({1, 5}).expand({1, 5}).requires_grad_());   // a view, but dense
      list->push_back(torch::randn({4}, torch::kComplexFloat).requires_grad_());
    }
  }
  void give_gradients(int step) {
    torch::manual_seed(100 + step);
    for (size_t i = 0; i < ours.size(); ++i) {
      // Gradients in plain row order, whatever the weight's order is; every third time in the weight's own.
      auto gradient = torch::randn(ours[i].sizes(), ours[i].options().requires_grad(false));
      if (step % 3 == 0) gradient = torch::empty_like(ours[i]).detach().copy_(gradient);
      ours[i].mutable_grad() = gradient.clone();
      theirs[i].mutable_grad() = gradient.clone();
    }
  }
};

template <class Optimizer, class Options>
double strange_difference(const Options& options, bool complex) {
  StrangePair pair;
  if (!complex) {
    pair.ours.pop_back();
    pair.theirs.pop_back();
  }
  Optimizer ours(pair.ours, options), theirs(pair.theirs, options);
  auto prepared = fused(ours);
  for (int i = 0; i < 20; ++i) {
    pair.give_gradients(i);
    prepared.step();
    theirs.step();
  }
  for (const auto& parameter : pair.ours) EXPECT_TRUE(parameter.grad().defined());
  return largest_difference(pair.ours, pair.theirs);
}

TEST(FusedStep, WeightsThatTheKernelsDoNotFollowGoAnotherWay) {
  EXPECT_LE((strange_difference<AdamW>(AdamWOptions(1e-2), false)), 1e-6);
  EXPECT_LE((strange_difference<AdamW>(AdamWOptions(1e-2).amsgrad(true), false)), 1e-6);
  EXPECT_LE((strange_difference<Adam>(AdamOptions(1e-2), false)), 1e-6);
  EXPECT_LE((strange_difference<SGD>(SGDOptions(1e-2), true)), 1e-6);
  EXPECT_LE((strange_difference<SGD>(SGDOptions(1e-2).momentum(0.9).nesterov(true), true)), 1e-6);
}

TEST(FusedStep, GradientsOfAnotherDtypeThanTheirWeightGoAnotherWay) {
  auto ours = torch::ones({4}, torch::requires_grad()), theirs = torch::ones({4}, torch::requires_grad());
  SGD plain({theirs}, 0.1), sgd({ours}, 0.1);
  auto prepared = fused(sgd);
  for (auto* weight : {&ours, &theirs}) (*weight).unsafeGetTensorImpl()->mutable_grad() = torch::full({4}, 0.5, torch::kDouble);
  prepared.step();
  plain.step();
  EXPECT_TRUE(torch::equal(ours, theirs));
}

TEST(FusedStep, GradientsThatAreToBeNegatedWhenReadGoAnotherWay) {
  FusedPair pair;
  AdamW adam(pair.ours, 1e-2), plain_adam(pair.theirs, 1e-2);
  SGD sgd(pair.ours, 1e-2), plain_sgd(pair.theirs, 1e-2);
  auto fused_adam = fused(adam), fused_sgd = fused(sgd);
  for (int i = 0; i < 5; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    for (const auto& weight : pair.ours) weight.mutable_grad() = torch::_neg_view(-weight.grad());
    fused_adam.step();
    fused_sgd.step();
    plain_adam.step();
    plain_sgd.step();
  }
  EXPECT_LE(largest_difference(pair.ours, pair.theirs), 1e-6);
}

TEST(FusedStep, SparseGradientsAreLeftToTheOptimizer) {
  torch::manual_seed(1);
  const auto value = torch::randn({5, 3});
  auto ours = value.clone().requires_grad_(), theirs = value.clone().requires_grad_();
  auto dense = torch::ones({2}, torch::requires_grad());
  SGD sgd({ours, dense}, 0.1), plain({theirs}, 0.1);
  auto prepared = fused(sgd);
  for (const auto& weight : {ours, theirs}) {
    weight.mutable_grad() = torch::sparse_coo_tensor(torch::tensor({{0, 3}}), torch::ones({2, 3}), {5, 3});
  }
  dense.mutable_grad() = torch::ones({2});
  prepared.step();
  plain.step();
  EXPECT_TRUE(torch::allclose(ours, theirs));
  EXPECT_TRUE(torch::allclose(dense, torch::full({2}, 0.9)));

  AdamW adamw({ours, dense});
  auto refusing = fused(adamw);
  const auto before = dense.detach().clone();
  EXPECT_THROW(refusing.step(), c10::Error);
  EXPECT_TRUE(torch::equal(dense, before)) << "a step that fails changes nothing";
  EXPECT_TRUE(dense.grad().defined()) << "and gives hidden gradients back";
}

TEST(FusedStep, AStepThatFailedLeavesNoMomentumBehind) {
  auto good = torch::ones({2}, torch::requires_grad()), bad = torch::ones({2, 2}).t().requires_grad_();
  SGD sgd({good, bad}, SGDOptions(0.5).momentum(0.9));
  auto prepared = fused(sgd);
  good.mutable_grad() = torch::ones({2});
  bad.unsafeGetTensorImpl()->mutable_grad() = torch::ones({3, 3});
  EXPECT_THROW(prepared.step(), c10::Error);
  EXPECT_EQ(sgd.state().count(good.unsafeGetTensorImpl()), 0u);
  bad.mutable_grad().reset();
  prepared.step();
  EXPECT_TRUE(torch::equal(good, torch::full({2}, 0.5)));
}

TEST(FusedStep, HalfPrecisionWeightsAreSteppedInTheirOwnDtype) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    torch::manual_seed(4);
    auto weight = torch::randn({64}, dtype).requires_grad_();
    auto reference = weight.detach().to(torch::kFloat).requires_grad_();
    AdamW adamw({weight}, AdamWOptions(1e-2)), plain({reference}, AdamWOptions(1e-2));
    auto prepared = fused(adamw);
    for (int i = 0; i < 5; ++i) {
      const auto gradient = torch::randn({64}, dtype);
      weight.mutable_grad() = gradient.clone();
      reference.mutable_grad() = gradient.to(torch::kFloat);
      prepared.step();
      plain.step();
    }
    EXPECT_EQ(weight.scalar_type(), dtype);
    EXPECT_LE((weight.detach().to(torch::kFloat) - reference).abs().max().item<double>(), 0.05);
  }
}

TEST(FusedStep, GradientsAreNotHeldBetweenSteps) {
  auto weight = torch::ones({4}, torch::requires_grad());
  AdamW adamw({weight});
  auto prepared = fused(adamw);
  auto gradient = torch::ones({4});
  weight.mutable_grad() = gradient;
  prepared.step();
  prepared.zero_grad();
  EXPECT_EQ(gradient.use_count(), 1u);
  EXPECT_FALSE(weight.grad().defined());
}

TEST(FusedStep, ABackwardPassThatNeedsTheOldWeightsIsRefused) {
  auto weight = torch::ones({4}, torch::requires_grad());
  SGD sgd({weight}, 0.1);
  auto prepared = fused(sgd);
  weight.mutable_grad() = torch::ones({4});
  const auto loss = (weight * weight).sum();
  prepared.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(FusedStep, TheNumberOfThreadsIsAsBefore) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  FusedPair pair;
  AdamW adamw(pair.ours);
  give_same_gradients(pair.ours, pair.theirs);
  fused(adamw).step();
  EXPECT_EQ(at::get_num_threads(), 3);
  at::set_num_threads(before);
}

TEST(FusedStep, GradientsAreNotChanged) {
  FusedPair pair;
  AdamW adamw(pair.ours, AdamWOptions(1e-2).weight_decay(0.5));
  SGD sgd(pair.theirs, SGDOptions(0.1).weight_decay(0.5).momentum(0.9));
  auto first = fused(adamw);
  auto second = fused(sgd);
  give_same_gradients(pair.ours, pair.theirs);
  const auto before = pair.ours[0].grad().clone();
  first.step();
  second.step();
  EXPECT_TRUE(torch::equal(pair.ours[0].grad(), before));
  EXPECT_TRUE(torch::equal(pair.theirs[0].grad(), before));
}

struct CountingSgd : SGD {
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return SGD::step(std::move(closure));
  }
  int steps = 0;
};

TEST(FusedStep, DerivedAndOtherOptimizersStepAsTheyAre) {
  auto weight = torch::ones({4}, torch::requires_grad());
  CountingSgd counting({weight}, SGDOptions(0.1));
  auto prepared = fused(counting);
  weight.mutable_grad() = torch::ones({4});
  prepared.step();
  EXPECT_EQ(counting.steps, 1);

  FusedPair pair;
  torch::optim::RMSprop ours(pair.ours, 1e-2), theirs(pair.theirs, 1e-2);
  auto rmsprop = fused(ours);
  for (int i = 0; i < 5; ++i) {
    give_same_gradients(pair.ours, pair.theirs);
    rmsprop.step();
    theirs.step();
  }
  EXPECT_EQ(largest_difference(pair.ours, pair.theirs), 0);
}

}  // namespace
