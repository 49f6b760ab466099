#include "training/optimizer_lifetime.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "rendezvous/torch_private_access.h"

namespace accelerate::detail {
namespace {

using torch::optim::Optimizer;

/// Defaults with something that ends with them: the one part of an optimizer that nobody replaces, copies as they are, or writes
/// to files. Clones, which parameter groups get, are plain options again.
template <class Options>
struct WatchedDefaults : Options {
  explicit WatchedDefaults(const Options& options) : Options(options) {}
  std::shared_ptr<const void> alive = std::make_shared<char>();
};

template <class Options>
std::shared_ptr<const void> watch(Optimizer& optimizer) {
  auto& defaults = torch_private::defaults_of(optimizer);
  if (!defaults) return nullptr;
  if (const auto* watched = dynamic_cast<const WatchedDefaults<Options>*>(defaults.get())) return watched->alive;
  if (typeid(*defaults) != typeid(Options)) return nullptr;
  auto watched = std::make_unique<WatchedDefaults<Options>>(static_cast<const Options&>(*defaults));
  auto alive = watched->alive;
  defaults = std::move(watched);
  return alive;
}

template <class... Options>
std::shared_ptr<const void> watch_first(Optimizer& optimizer) {
  std::shared_ptr<const void> alive;
  ((alive = watch<Options>(optimizer)) || ...);
  return alive;
}

}  // namespace

std::shared_ptr<const void> lifetime_of(Optimizer& optimizer) {
  using namespace torch::optim;
  return watch_first<AdamWOptions, AdamOptions, SGDOptions, RMSpropOptions, AdagradOptions, LBFGSOptions>(optimizer);
}

bool is_moved_from(Optimizer& optimizer) { return !torch_private::defaults_of(optimizer); }

}  // namespace accelerate::detail
