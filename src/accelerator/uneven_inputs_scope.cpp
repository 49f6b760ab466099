#include <accelerate/accelerator/uneven_inputs_scope.h>
#include <accelerate/core/error.h>

namespace accelerate {

UnevenInputsScope::UnevenInputsScope(JoinScope join, std::shared_ptr<GradientState> gradients,
                                     const std::vector<detail::LoaderHandle>& loaders, std::optional<bool> even_batches)
    : join_(std::make_unique<JoinScope>(std::move(join))), gradients_(std::move(gradients)) {
  // Who has no more batches can follow the collectives of one scope only.
  if (gradients_->awaits_end_of_data())
    throw UsageError("join_uneven_inputs was called within such a scope. Make one for all models that the loop trains.");
  gradients_->on_end_of_data([scope = join_.get()] { scope->finish(); });
  if (!even_batches) return;
  for (auto loader : loaders) {
    if (const auto before = loader.set_even_batches(*even_batches)) even_before_.emplace_back(loader, *before);
  }
}

UnevenInputsScope::~UnevenInputsScope() {
  if (!join_) return;
  gradients_->on_end_of_data({});
  for (auto& [loader, even] : even_before_) loader.set_even_batches(even);
}

}  // namespace accelerate
