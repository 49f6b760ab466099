#include "data/loader_progress.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>
#include <accelerate/data/random_sampler.h>
#include <c10/util/Type.h>

#include <mutex>
#include <typeinfo>

#include "data/batch_stream.h"
#include "data/loader_spec.h"

namespace accelerate::detail {
namespace {

at::Tensor numbers_of(const std::optional<at::Generator>& generator) {
  if (!generator || !generator->defined()) return {};
  at::Generator open = *generator;
  const std::lock_guard lock(open.mutex());
  return open.get_state();
}

void set_numbers(std::optional<at::Generator> generator, const at::Tensor& numbers) {
  if (!generator || !generator->defined() || !numbers.defined()) return;
  const std::lock_guard lock(generator->mutex());
  generator->set_state(numbers);
}

std::optional<at::Generator> order_of(const LoaderSpec& spec) {
  if (spec.iterable()) return spec.reader->generator();
  return spec.batches ? spec.batches->generator() : spec.sampler->generator();
}

std::optional<at::Generator> make_order_of(const LoaderSpec& spec) {
  if (spec.iterable()) return spec.reader->generator();
  return spec.batches ? spec.batches->own_generator() : spec.sampler->own_generator();
}

Value value_of_numbers(const at::Tensor& numbers) { return numbers.defined() ? Value(numbers) : Value(); }

at::Tensor numbers_from(const Value& value) { return value.is_none() ? at::Tensor() : value.as<at::Tensor>(); }

Value value_of_count(const std::optional<int64_t>& count) { return count ? Value(*count) : Value(); }

std::optional<int64_t> count_from(const Value& value) {
  return value.is_none() ? std::nullopt : std::optional(value.get<int64_t>());
}

/// Its type, and what else decides which samples it draws.
std::string description_of(const Sampler& sampler) {
  const auto* random = dynamic_cast<const RandomSampler*>(&sampler);
  return c10::demangle(typeid(sampler).name()) + (random && random->options().replacement ? " with replacement" : "");
}

/// The batches of all processes, as the user gave them.
const BatchSampler& whole_batches(const LoaderSpec& spec) {
  const BatchSampler* batches = spec.batches.get();
  while (true) {
    if (const auto* skipping = dynamic_cast<const SkipBatchSampler*>(batches)) {
      batches = skipping->whole().get();
    } else if (const auto* shard = dynamic_cast<const BatchSamplerShard*>(batches)) {
      batches = shard->whole().get();
    } else {
      return *batches;
    }
  }
}

/// The pass that is repeated drew its order from the default generator, where this one has a generator for it: that one is set to
/// what was drawn from then.
void draw_order_as_default(const LoaderSpec& spec, at::Generator order) {
  follow_stream(spec);
  if (dynamic_cast<const RandomSampler*>(spec.sampler.get())) {
    const auto seed = static_cast<uint64_t>(at::empty({}, at::kLong).random_().item<int64_t>());
    const std::lock_guard lock(order.mutex());
    order.set_current_seed(seed);
  } else {
    set_numbers(order, numbers_of(at::globalContext().defaultGenerator(at::kCPU)));
  }
}

}  // namespace

PassOrder PassOrder::of(const LoaderSpec& spec) {
  PassOrder order{.dataset_length = spec.reader->size()};
  if (spec.sampler) {
    order.sampler_length = spec.sampler->size();
    order.sampler = description_of(*spec.sampler);
  } else if (spec.batches) {
    order.batches = whole_batches(spec).size();
  }
  return order;
}

Value PassOrder::to_value() const {
  return StateDict{{"dataset_length", value_of_count(dataset_length)},
                   {"sampler_length", value_of_count(sampler_length)},
                   {"sampler", sampler},
                   {"batches", value_of_count(batches)}};
}

PassOrder PassOrder::from_value(const Value& value) {
  return {count_from(value["dataset_length"]), count_from(value["sampler_length"]), value["sampler"].get<std::string>(),
          value.as<StateDict>().contains("batches") ? count_from(value["batches"]) : std::nullopt};
}

std::string PassOrder::difference_to(const PassOrder& now) const {
  const auto differ = [](const auto& saved, const auto& present) { return saved && present && *saved != *present; };
  if (differ(dataset_length, now.dataset_length)) {
    return "its dataset has " + std::to_string(*now.dataset_length) + " samples, and had " + std::to_string(*dataset_length) +
           " when the checkpoint was saved";
  }
  if (differ(sampler_length, now.sampler_length)) {
    return "its sampler visits " + std::to_string(*now.sampler_length) + " samples, and visited " +
           std::to_string(*sampler_length) + " when the checkpoint was saved";
  }
  if (differ(batches, now.batches)) {
    return "its sampler gives " + std::to_string(*now.batches) + " batches, and gave " + std::to_string(*batches) +
           " when the checkpoint was saved";
  }
  if (sampler != now.sampler) {
    const auto named = [](const std::string& type) { return type.empty() ? std::string("no sampler") : type; };
    return "its order is that of " + named(now.sampler) + ", and was that of " + named(sampler) +
           " when the checkpoint was saved";
  }
  return "";
}

RandomNumbers RandomNumbers::of(const LoaderSpec& spec) {
  return {numbers_of(at::globalContext().defaultGenerator(at::kCPU)), numbers_of(spec.options.generator),
          numbers_of(order_of(spec))};
}

Value RandomNumbers::to_value() const {
  return Value::List{value_of_numbers(of_default), value_of_numbers(of_options), value_of_numbers(of_order)};
}

RandomNumbers RandomNumbers::from_value(const Value& value) {
  const auto& numbers = value.as<Value::List>();
  if (numbers.size() != 3) throw UsageError("expected three random states, got " + std::to_string(numbers.size()) + ".");
  return {numbers_from(numbers[0]), numbers_from(numbers[1]), numbers_from(numbers[2])};
}

void RandomNumbers::give_to(const LoaderSpec& spec) const {
  set_numbers(spec.options.generator, of_options);
  if (of_order.defined()) set_numbers(make_order_of(spec), of_order);
}

ReplayedNumbers::ReplayedNumbers(const LoaderSpec& spec, const RandomNumbers& start)
    : default_(at::globalContext().defaultGenerator(at::kCPU)), present_(numbers_of(default_)) {
  start.give_to(spec);
  set_numbers(default_, start.of_default);
  const auto order = order_of(spec);
  if (order && order->defined() && !start.of_order.defined() && *order != default_) {
    draw_order_as_default(spec, *order);
    set_numbers(spec.options.generator, start.of_options);
    set_numbers(default_, start.of_default);
  }
}

ReplayedNumbers::~ReplayedNumbers() {
  try {
    set_numbers(default_, present_);
  } catch (...) {  // a state that it gave itself fits
  }
}

}  // namespace accelerate::detail
