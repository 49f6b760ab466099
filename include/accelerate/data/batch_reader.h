#pragma once

#include <accelerate/data/collate.h>
#include <accelerate/data/dataset.h>
#include <accelerate/distributed/objects.h>

#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

/// The one part of a loader that knows what is in a dataset. The rest handles batches without looking into them.
namespace accelerate::detail {

/// A batch or sample of a type that only its reader knows.
using Anything = std::shared_ptr<void>;

/// What the generators of a dataset's samples depend on, beside the position of each.
struct SampleSeed {
  uint64_t seed = 0;
  int64_t epoch = 0;
};
at::Generator sample_generator(const SampleSeed& seed, int64_t index);

/// Called in a catch block: throws what was caught again with `doing` ("reading sample 17") in its text, as the same kind of
/// accelerate::Error or as an Error; the original is nested in it.
[[noreturn]] void rethrow_while(const std::string& doing);
std::string sample_text(int64_t index);
std::string samples_text(const Indices& indices);

/// Everything in it can travel as an object.
template <class T, int Levels = kCollateLevels>
constexpr bool sendable() {
  if constexpr (Levels == 0 || std::is_same_v<T, Value> || std::is_same_v<T, StateDict>) {
    return true;
  } else if constexpr (MapLike<T>) {
    return sendable<typename T::key_type, Levels - 1>() && sendable<typename T::mapped_type, Levels - 1>();
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return sendable<typename T::value_type, Levels - 1>();
  } else if constexpr (TupleLike<T>) {
    return []<class... E>(std::type_identity<std::tuple<E...>>) { return (sendable<E, Levels - 1>() && ...); }
    (std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>());
  } else if constexpr (PlainStruct<T>) {
    return sendable<FieldTypes<T>, Levels - 1>();
  } else {
    return is_object<T>();
  }
}

/// Reads samples and makes batches of them. Everything but `set_epoch` may be called by several threads at once, except the
/// stream of `open`, which is for one at a time.
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// The dataset's type, for messages.
  virtual const char* dataset_type() const = 0;
  virtual bool iterable() const = 0;
  /// How many samples there are.
  virtual std::optional<int64_t> size() const = 0;
  virtual void set_epoch(int64_t epoch) = 0;
  /// The generator of an iterable dataset.
  virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  /// False when a pass must seed the generator with its epoch, since the dataset does not want to be told.
  virtual bool takes_epoch() const = 0;

  /// Of a map-style dataset: the batch of the samples at `indices`, and one sample that is no batch.
  virtual Anything read(const Indices& indices, const SampleSeed& seed) const = 0;
  virtual Anything read_one(int64_t index, const SampleSeed& seed) const = 0;
  /// Of an iterable one: a pass over its samples, a batch of such samples, and one sample that is no batch.
  virtual Source<Anything> open() const = 0;
  virtual Anything join(const std::vector<Anything>& samples) const = 0;
  virtual Anything join_one(const Anything& sample) const = 0;

  /// Of a batch: its tensors, to read or replace in place.
  virtual Leaves leaves(const Anything& batch) const = 0;
  /// And its plain data; nothing when its type cannot travel.
  virtual std::optional<Value> to_value(const Anything& batch) const = 0;
  virtual Anything from_value(const Value& value) const = 0;
};

/// Takes the first row of everything that was stacked from one sample.
void unstack(const Leaves& leaves);

template <class Batch>
class BatchType : public BatchReader {
 public:
  Leaves leaves(const Anything& batch) const override { return leaves_of(*static_cast<Batch*>(batch.get())); }
  std::optional<Value> to_value(const Anything& batch) const override {
    if constexpr (sendable<Batch>()) {
      return accelerate::to_value(*static_cast<const Batch*>(batch.get()));
    } else {
      return std::nullopt;
    }
  }
  Anything from_value(const Value& value) const override {
    if constexpr (sendable<Batch>()) {
      return std::make_shared<Batch>(accelerate::from_value<Batch>(value));
    } else {
      return nullptr;
    }
  }
};

/// Joins samples as default_collate does.
struct DefaultCollate {};

template <class Batch, class Sample, class Collate>
Anything join_samples(const Collate& collate_fn, std::vector<Sample> samples, const Indices& indices) {
  if constexpr (std::is_same_v<Collate, DefaultCollate>) {
    return std::make_shared<Batch>(collate(std::move(samples), CollatePlace{indices}));
  } else {
    return std::make_shared<Batch>(collate_fn(std::move(samples)));
  }
}

/// A sample that is handed out alone. Where batches are of another type it is made one and, by default, taken apart again.
template <class Batch, class Sample, class Collate>
Anything lone_sample(const Collate& collate_fn, Sample sample) {
  if constexpr (std::is_same_v<Batch, Sample>) {
    return std::make_shared<Batch>(std::move(sample));
  } else {
    std::vector<Sample> one;
    one.push_back(std::move(sample));
    Anything batch = join_samples<Batch>(collate_fn, std::move(one), {});
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

  Anything read(const Indices& indices, const SampleSeed& seed) const override {
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
  Anything read_one(int64_t index, const SampleSeed& seed) const override {
    if constexpr (kWhole && !std::is_same_v<Batch, SampleOf<D>>) {
      return read({index}, seed);
    } else {
      return lone_sample<Batch>(collate_, sample_at(index, seed));
    }
  }

  Source<Anything> open() const override { return {}; }
  Anything join(const std::vector<Anything>&) const override { return nullptr; }
  Anything join_one(const Anything&) const override { return nullptr; }

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
    if constexpr (requires(D & d) { { d.generator() } -> std::convertible_to<at::Generator>; }) {
      return at::Generator(dataset_->generator());
    } else {
      return std::nullopt;
    }
  }

  Source<Anything> open() const override {
    // The iterators are made at the first call, by the thread that reads. They and the dataset live as long as the source.
    struct Walk {
      std::shared_ptr<D> dataset;
      std::optional<std::ranges::iterator_t<D>> at = {};
    };
    return [walk = std::make_shared<Walk>(Walk{dataset_})]() -> std::optional<Anything> {
      if (walk->at) {
        ++*walk->at;
      } else {
        walk->at.emplace(std::ranges::begin(*walk->dataset));
      }
      if (*walk->at == std::ranges::end(*walk->dataset)) return std::nullopt;
      return std::make_shared<Sample>(**walk->at);
    };
  }
  Anything join(const std::vector<Anything>& samples) const override {
    std::vector<Sample> own;
    own.reserve(samples.size());
    // Copied: a sample that fills up the last batch is in the first one too.
    for (const auto& sample : samples) own.push_back(*static_cast<const Sample*>(sample.get()));
    return join_samples<Batch>(collate_, std::move(own), {});
  }
  Anything join_one(const Anything& sample) const override {
    return lone_sample<Batch>(collate_, *static_cast<const Sample*>(sample.get()));
  }

  Anything read(const Indices&, const SampleSeed&) const override { return nullptr; }
  Anything read_one(int64_t, const SampleSeed&) const override { return nullptr; }

 private:
  std::shared_ptr<D> dataset_;
  Collate collate_;
};

template <class D, class Collate>
constexpr auto batch_type() {
  using Sample = SampleOf<D>;
  if constexpr (!std::is_same_v<Collate, DefaultCollate>) {
    return std::type_identity<std::remove_cvref_t<std::invoke_result_t<const Collate&, std::vector<Sample>>>>();
  } else if constexpr (GetsBatch<DatasetType<D>>) {
    return std::type_identity<std::remove_cvref_t<decltype(get_batch_of(std::declval<DatasetType<D>&>(), Indices()))>>();
  } else {
    static_assert(Collatable<Sample>,
                  "a sample must hold tensors alone (a struct), or tensors, numbers and text (a tuple, vector or map): else give a "
                  "function that makes a batch of a std::vector of samples, DataLoader(dataset, collate, options)");
    if constexpr (Collatable<Sample>) {
      return std::type_identity<typename Batched<Sample>::type>();
    } else {
      return std::type_identity<Sample>();
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
  }
  if constexpr (MapDataset<Dataset>) {
    return std::make_unique<MapReader<Dataset, BatchOf<D, Collate>, Collate>>(std::move(shared), std::move(collate_fn));
  } else {
    return std::make_unique<IterableReader<Dataset, BatchOf<D, Collate>, Collate>>(std::move(shared), std::move(collate_fn));
  }
}

}  // namespace accelerate::detail
