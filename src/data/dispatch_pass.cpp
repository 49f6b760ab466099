#include "data/dispatch_pass.h"

#include <ATen/ops/empty.h>
#include <accelerate/core/error.h>
#include <accelerate/distributed/collectives.h>

namespace accelerate::detail {
namespace {

Value kind_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  Value::List shape;
  for (const int64_t size : tensor.sizes()) shape.push_back(size);
  return Value::Tuple{static_cast<int64_t>(tensor.scalar_type()), std::move(shape)};
}

at::Tensor empty_of(const Value& kind, const std::optional<at::Device>& device) {
  if (kind.is_none()) return {};
  const auto& items = kind.as<Value::Tuple>().items;
  std::vector<int64_t> shape;
  for (const auto& size : items[1].as<Value::List>()) shape.push_back(size.get<int64_t>());
  return at::empty(
      shape, at::TensorOptions().dtype(static_cast<at::ScalarType>(items[0].get<int64_t>())).device(device.value_or(at::kCPU)));
}

/// What is no tensor stays as it is in `batch`.
void append_rows(Value& batch, Value more) {
  std::vector<Leaves> parts = {leaves_of(batch), leaves_of(more)};
  for (auto& part : parts) part.other.clear();
  concatenate(parts, 0);
}

Value slice_rows(Value batch, int64_t begin, int64_t end) { return slice_tensors(std::move(batch), begin, end); }

}  // namespace

DispatchPass::DispatchPass(std::shared_ptr<LoaderCore> core, std::source_location where)
    : PreparedPass(std::move(core), where), to_skip_(core_->skip_batches) {
  if (!sharding().state.is_main_process()) follow_stream(spec());
}

std::optional<Value> DispatchPass::read_round() {
  if (!stream_) stream_ = open_stream(spec(), core_->sample_seed(), {.shared = start_.shared});
  for (; to_drop_ > 0 && !last_; --to_drop_) read_batches();
  const auto batches = read_batches();
  if (batches.empty() || (last_ && spec().options.drop_last)) return std::nullopt;
  return join(batches);
}

std::vector<ErasedBatch> DispatchPass::read_batches() {
  const size_t parts = sharding().split_batches ? 1 : static_cast<size_t>(sharding().state.num_processes());
  std::vector<ErasedBatch> batches;
  while (!last_ && batches.size() < parts) {
    if (ErasedBatch batch = stream_->next()) {
      batches.push_back(std::move(batch));
    } else {
      last_ = true;
    }
  }
  return batches;
}

Value DispatchPass::join(const std::vector<ErasedBatch>& batches) const {
  std::vector<Leaves> parts;
  for (const auto& batch : batches) parts.push_back(spec().reader->leaves(batch));
  try {
    concatenate(parts, 0);
  } catch (const UsageError& error) {
    throw UsageError(
        std::string(error.what()) +
        " With dispatch_batches the main process concatenates one batch per process; if their shapes differ, set "
        "dispatch_batches=false (every process reads its own) or split_batches=true (one batch is split among all).");
  }
  return spec().reader->to_value(batches.front());
}

std::optional<DispatchPass::Round> DispatchPass::fetch() {
  const auto& state = sharding().state;
  Round round;
  Value::List message;
  std::exception_ptr failure;
  if (state.is_main_process()) {
    std::string text;
    std::optional<Value> batch;
    try {
      batch = read_round();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      text = error.what();
    } catch (...) {
      failure = std::current_exception();
      text = "an exception without a message";
    }
    Value outline;
    if (batch) {
      round.batch = std::move(*batch);
      for (const at::Tensor* tensor : leaves_of(round.batch).tensors) round.kinds.push_back(kind_of(*tensor));
      outline = round.batch;
      for (at::Tensor* tensor : leaves_of(outline).tensors) *tensor = at::Tensor();
    }
    message = {failure ? Value(text) : Value(), last_, batch.has_value(), std::move(outline), round.kinds};
  }
  message = broadcast_list(state, message, 0, where_);
  if (failure) std::rethrow_exception(failure);
  if (!message[0].is_none()) {
    throw Error("process 0, which reads for all processes (dispatch_batches), failed: " + message[0].get<std::string>());
  }
  last_ = message[1].get<bool>();
  if (!message[2].get<bool>()) return std::nullopt;
  if (!state.is_main_process()) round = {std::move(message[3]), std::move(message[4].as<Value::List>())};
  return round;
}

void DispatchPass::broadcast_round(Round& round) {
  const Leaves leaves = leaves_of(round.batch);
  if (sharding().state.is_main_process()) {
    if (sharding().device) send_to_device(leaves, *sharding().device, sharding().non_blocking);
  } else {
    for (size_t i = 0; i < leaves.tensors.size(); ++i) *leaves.tensors[i] = empty_of(round.kinds[i], sharding().device);
  }
  Leaves sent;
  for (at::Tensor* tensor : leaves.tensors) {
    if (tensor->defined()) sent.tensors.push_back(tensor);
  }
  sent.outline = leaves.outline;
  broadcast(sharding().state, sent, 0, where_);
}

ErasedBatch DispatchPass::share_of(Round& round, bool last) {
  const int64_t processes = sharding().state.num_processes(), process = sharding().state.process_index();
  const int64_t rows = find_batch_size(round.batch);
  int64_t share = rows / processes;
  if (last && !spec().options.drop_last && rows % processes != 0) {
    ++share;
    // Again and again where there are fewer samples than processes, so that no process is left without a row.
    const int64_t more = find_batch_size(*beginning_);
    for (int64_t have = rows; more > 0 && have < share * processes; have += more) append_rows(round.batch, *beginning_);
  }
  if (last) {
    position().end_of_dataloader = true;
    position().remainder = rows;
  }
  return spec().reader->from_value(slice_rows(std::move(round.batch), process * share, (process + 1) * share));
}

void DispatchPass::resume() {
  if (!ahead_) return;
  // The first round is had in full, for what fills up the last one; the others up to where the run resumes are dropped.
  broadcast_round(*ahead_);
  if (!spec().options.drop_last) beginning_ = slice_rows(ahead_->batch, 0, sharding().state.num_processes());
  to_drop_ = start_.own - 1;
  ahead_ = fetch();
}

ErasedBatch DispatchPass::next_batch() {
  if (!begun_) {
    begun_ = true;
    ahead_ = fetch();
    end_replay();
    if (start_.own > 0) resume();
    if (!ahead_ && (start_.own > 0 || start_.shared > 0)) {
      ended_ = position().end_of_dataloader = true;
    } else if (!ahead_) {
      throw UsageError("there is no batch to dispatch: " + spec().dataset_type +
                       " has no samples, or too few for every process to get a batch with drop_last.");
    }
  }
  while (true) {
    if (ended_) {
      finish(true);
      return nullptr;
    }
    Round round = std::move(*ahead_);
    broadcast_round(round);
    if (!beginning_ && !spec().options.drop_last) {
      beginning_ = slice_rows(round.batch, 0, sharding().state.num_processes());
    }
    ended_ = last_;
    if (!ended_) {
      ahead_ = fetch();
      ended_ = !ahead_;
    }
    ErasedBatch batch = share_of(round, ended_);
    if (to_skip_ == 0) return batch;
    --to_skip_;
  }
}

}  // namespace accelerate::detail
