#include <accelerate/accelerator/uneven_inputs_scope.h>
#include <accelerate/core/error.h>

namespace accelerate {

UnevenInputsScope::UnevenInputsScope(JoinScope join, std::shared_ptr<ActiveLoaders> active,
                                     const std::vector<detail::AnyDataLoader>& loaders, std::optional<bool> even_batches)
    : join_(std::make_unique<JoinScope>(std::move(join))), active_(std::move(active)) {
  // A rank without batches can join the collectives of one scope only.
  if (active_->awaits_end_of_data())
    throw UsageError("join_uneven_inputs scopes cannot be nested. Make one scope for all models that the loop trains.");
  active_->on_end_of_data([scope = join_.get()] { scope->finish(); });
  if (!even_batches) return;
  for (auto loader : loaders) {
    if (const auto before = loader.set_even_batches(*even_batches)) even_before_.emplace_back(loader, *before);
  }
}

UnevenInputsScope::~UnevenInputsScope() {
  if (!join_) return;
  active_->on_end_of_data({});
  for (auto& [loader, even] : even_before_) loader.set_even_batches(even);
}

}  // namespace accelerate
