#include <accelerate/data/active_loaders.h>

namespace accelerate {

void ActiveLoaders::enter(std::shared_ptr<const LoaderPosition> loader) { loaders_.push_back(std::move(loader)); }

void ActiveLoaders::leave(const LoaderPosition* loader) {
  std::erase_if(loaders_, [&](const auto& entered) { return entered.get() == loader; });
}

bool ActiveLoaders::end_of_dataloader() const { return in_dataloader() && loaders_.back()->end_of_dataloader; }

int64_t ActiveLoaders::remainder() const { return in_dataloader() ? loaders_.back()->remainder : -1; }

void ActiveLoaders::data_ended() const {
  if (on_end_of_data_ && !in_dataloader()) on_end_of_data_();
}

}  // namespace accelerate
