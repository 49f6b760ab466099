#pragma once

#include <accelerate/data/collate.h>
#include <accelerate/data/erased_batch.h>
#include <accelerate/data/sampler.h>
#include <accelerate/distributed/objects.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

/// The lowest of the four layers of a loader (docs/architecture.md), and the only one that knows what is in a dataset: the rest
/// handles batches without looking into them. BatchReader is its type-erased interface; what derives from it is the same layer.
namespace accelerate::detail {

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

/// Everything in it can be sent as an object.
template <class T, int Levels = kCollateLevels>
constexpr bool sendable() {
  if constexpr (Levels == 0 || std::is_same_v<T, Value> || std::is_same_v<T, StateDict>) {
    return true;
  } else if constexpr (MapLike<T>) {
    return sendable<typename T::key_type, Levels - 1>() && sendable<typename T::mapped_type, Levels - 1>();
  } else if constexpr (SequenceLike<T> || is_optional<T>::value) {
    return sendable<typename T::value_type, Levels - 1>();
  } else if constexpr (TupleLike<T>) {
    return []<class... E>(std::type_identity<std::tuple<E...>>) {
      return (sendable<E, Levels - 1>() && ...);
    }(std::type_identity<decltype(std::tuple_cat(std::declval<T>()))>());
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
  /// False when a pass must seed the generator with its epoch, since the dataset has no set_epoch.
  virtual bool takes_epoch() const = 0;

  /// Of a map-style dataset: the batch of the samples at `indices`, and one sample that is no batch.
  virtual ErasedBatch read(const Indices&, const SampleSeed&) const { return nullptr; }
  virtual ErasedBatch read_one(int64_t, const SampleSeed&) const { return nullptr; }
  /// Of an iterable one: a pass over its samples, a batch of such samples, and one sample that is no batch.
  virtual Source<ErasedBatch> open() const { return {}; }
  virtual ErasedBatch join(const std::vector<ErasedBatch>&) const { return nullptr; }
  virtual ErasedBatch join_one(const ErasedBatch&) const { return nullptr; }

  /// Of a batch: its tensors, to read or replace in place.
  virtual Leaves leaves(const ErasedBatch& batch) const = 0;
  /// Whether it can be sent as plain data, and as such.
  virtual bool sends() const = 0;
  virtual Value to_value(const ErasedBatch& batch) const = 0;
  virtual ErasedBatch from_value(const Value& value) const = 0;
};

template <class Batch>
class BatchType : public BatchReader {
 public:
  Leaves leaves(const ErasedBatch& batch) const override { return leaves_of(*static_cast<Batch*>(batch.get())); }
  bool sends() const override { return sendable<Batch>(); }
  Value to_value(const ErasedBatch& batch) const override {
    if constexpr (sendable<Batch>()) {
      return accelerate::to_value(*static_cast<const Batch*>(batch.get()));
    } else {
      return {};
    }
  }
  ErasedBatch from_value(const Value& value) const override {
    if constexpr (sendable<Batch>()) {
      return std::make_shared<Batch>(accelerate::from_value<Batch>(value));
    } else {
      return nullptr;
    }
  }
};

}  // namespace accelerate::detail
