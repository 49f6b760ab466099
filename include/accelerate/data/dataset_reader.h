#pragma once

#include <accelerate/data/batch_reader.h>
#include <accelerate/data/dataset.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

/// Readers of datasets of the user's own types.
namespace accelerate::detail {

/// UsageError when there is none.
void expect_dataset(bool given);

/// Takes the first row of everything that was stacked from one sample.
void unstack(const Leaves& leaves);

/// Joins samples as default_collate does.
struct DefaultCollate {};

template <class Batch, class Sample, class Collate>
ErasedBatch join_samples(const Collate& collate_fn, std::vector<Sample> samples, const Indices& indices) {
  if constexpr (std::is_same_v<Collate, DefaultCollate> && !Collatable<Sample>) {
    return nullptr;  // does not compile, see batch_type
  } else if constexpr (std::is_same_v<Collate, DefaultCollate>) {
    return std::make_shared<Batch>(collate(std::move(samples), CollatePlace{indices}));
  } else {
    try {
      return std::make_shared<Batch>(collate_fn(std::move(samples)));
    } catch (...) {
      rethrow_while("collating " + samples_text(indices));
    }
  }
}

/// A sample that is handed out alone. Where batches are of another type it is made one and, by default, unpacked again.
template <class Batch, class Sample, class Collate>
ErasedBatch lone_sample(const Collate& collate_fn, Sample sample) {
  if constexpr (std::is_same_v<Batch, Sample>) {
    return std::make_shared<Batch>(std::move(sample));
  } else {
    std::vector<Sample> one;
    one.push_back(std::move(sample));
    ErasedBatch batch = join_samples<Batch>(collate_fn, std::move(one), {});
    if constexpr (std::is_same_v<Collate, DefaultCollate>) unstack(leaves_of(*static_cast<Batch*>(batch.get())));
    return batch;
  }
}

template <class D>
void tell_epoch(D& dataset, int64_t epoch) {
  if constexpr (requires { dataset.set_epoch(epoch); }) dataset.set_epoch(epoch);
}

template <MapDataset D, class Batch, class Collate>
class MapReader : public BatchType<Batch> {
 public:
  MapReader(std::shared_ptr<D> dataset, Collate collate_fn) : dataset_(std::move(dataset)), collate_(std::move(collate_fn)) {}
  const char* dataset_type() const override { return typeid(D).name(); }
  bool iterable() const override { return false; }
  std::optional<int64_t> size() const override { return size_of(*dataset_); }
  void set_epoch(int64_t epoch) override { tell_epoch(*dataset_, epoch); }
  bool takes_epoch() const override { return true; }

  ErasedBatch read(const Indices& indices, const SampleSeed& seed) const override {
    if constexpr (kWhole) {
      try {
        return std::make_shared<Batch>(get_batch_of(*dataset_, indices));
      } catch (...) {
        rethrow_while("reading " + samples_text(indices));
      }
    } else {
      std::vector<SampleOf<D>> samples;
      samples.reserve(indices.size());
      for (const int64_t index : indices) samples.push_back(sample_at(index, seed));
      return join_samples<Batch>(collate_, std::move(samples), indices);
    }
  }
  ErasedBatch read_one(int64_t index, const SampleSeed& seed) const override {
    if constexpr (kWhole && !std::is_same_v<Batch, SampleOf<D>>) {
      return read({index}, seed);
    } else {
      return lone_sample<Batch>(collate_, sample_at(index, seed));
    }
  }

 private:
  static constexpr bool kWhole = GetsBatch<D> && std::is_same_v<Collate, DefaultCollate>;

  SampleOf<D> sample_at(int64_t index, const SampleSeed& seed) const {
    try {
      return get_sample_of(*dataset_, index, [&](int64_t i) { return sample_generator(seed, i); });
    } catch (...) {
      rethrow_while("reading " + sample_text(index));
    }
  }

  std::shared_ptr<D> dataset_;
  Collate collate_;
};

template <IterableDataset D, class Batch, class Collate>
class IterableReader : public BatchType<Batch> {
  using Sample = SampleOf<D>;

 public:
  IterableReader(std::shared_ptr<D> dataset, Collate collate_fn)
      : dataset_(std::move(dataset)), collate_(std::move(collate_fn)) {}
  const char* dataset_type() const override { return typeid(D).name(); }
  bool iterable() const override { return true; }
  std::optional<int64_t> size() const override { return size_of(*dataset_); }
  void set_epoch(int64_t epoch) override { tell_epoch(*dataset_, epoch); }
  bool takes_epoch() const override {
    return requires(D & d) { d.set_epoch(int64_t()); };
  }
  std::optional<at::Generator> generator() const override {
    if constexpr (requires(D & d) {
                    { d.generator() } -> std::convertible_to<at::Generator>;
                  }) {
      return at::Generator(dataset_->generator());
    } else {
      return std::nullopt;
    }
  }

  Source<ErasedBatch> open() const override {
    // The iterators are made at the first call, by the thread that reads. They and the dataset live as long as the source.
    struct Walk {
      std::shared_ptr<D> dataset;
      std::optional<IteratorOf<D>> at = {};
    };
    return [walk = std::make_shared<Walk>(Walk{dataset_})]() -> std::optional<ErasedBatch> {
      if (walk->at) {
        ++*walk->at;
      } else {
        walk->at.emplace(std::ranges::begin(*walk->dataset));
      }
      if (*walk->at == std::ranges::end(*walk->dataset)) return std::nullopt;
      return std::make_shared<Sample>(**walk->at);
    };
  }
  ErasedBatch join(const std::vector<ErasedBatch>& samples) const override {
    std::vector<Sample> own;
    own.reserve(samples.size());
    // Copied: a sample that fills up the last batch is in the first one too.
    for (const auto& sample : samples) own.push_back(*static_cast<const Sample*>(sample.get()));
    return join_samples<Batch>(collate_, std::move(own), {});
  }
  ErasedBatch join_one(const ErasedBatch& sample) const override {
    return lone_sample<Batch>(collate_, *static_cast<const Sample*>(sample.get()));
  }

 private:
  std::shared_ptr<D> dataset_;
  Collate collate_;
};

template <class D, class Collate>
constexpr auto batch_type() {
  using Sample = SampleOf<D>;
  if constexpr (!std::is_same_v<Collate, DefaultCollate>) {
    using Batch = std::remove_cvref_t<std::invoke_result_t<const Collate&, std::vector<Sample>>>;
    expect_parts<Batch>();
    return std::type_identity<Batch>();
  } else if constexpr (GetsBatch<DatasetType<D>>) {
    using Batch = std::remove_cvref_t<decltype(get_batch_of(std::declval<DatasetType<D>&>(), Indices()))>;
    expect_parts<Batch>();
    return std::type_identity<Batch>();
  } else {
    static_assert(Collatable<Sample>,
                  "a sample must hold only tensors (a struct), or tensors, numbers and text (a tuple, vector or map): otherwise "
                  "give a function that collates a std::vector of samples, DataLoader(dataset, collate, options)");
    if constexpr (Collatable<Sample>) {
      return std::type_identity<typename Batched<Sample>::type>();
    } else {
      return std::type_identity<at::Tensor>();
    }
  }
}
/// The type of the batches of a loader.
template <AnyDataset D, class Collate = DefaultCollate>
using BatchOf = typename decltype(batch_type<D, Collate>())::type;

template <AnyDataset D, class Collate>
std::unique_ptr<BatchReader> make_reader(D dataset, Collate collate_fn) {
  using Dataset = DatasetType<D>;
  std::shared_ptr<Dataset> shared;
  if constexpr (std::is_same_v<Dataset, D>) {
    shared = std::make_shared<Dataset>(std::move(dataset));
  } else {
    shared = std::move(dataset);
    expect_dataset(shared != nullptr);
  }
  if constexpr (MapDataset<Dataset>) {
    return std::make_unique<MapReader<Dataset, BatchOf<D, Collate>, Collate>>(std::move(shared), std::move(collate_fn));
  } else {
    return std::make_unique<IterableReader<Dataset, BatchOf<D, Collate>, Collate>>(std::move(shared), std::move(collate_fn));
  }
}

}  // namespace accelerate::detail
