#include "big_model/dispatcher.h"

#include <ATen/ops/empty.h>
#include <accelerate/console/logging.h>
#include <accelerate/core/error.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <thread>

#include "big_model/offload_budget.h"
#include "big_model/offloaded_before.h"
#include "checkpoint/host_group.h"
#include "checkpoint/shared_failure.h"
#include "core/escaped.h"
#include "distributed/tensor_text.h"
#include "residency/init_log.h"
#include "residency/interception.h"
#include "residency/managed_storage.h"
#include "residency/mapped_tensor.h"

namespace accelerate::detail {
namespace {

constexpr char kLoadCall[] = "load_checkpoint_in_model";

/// The first accelerator of a map, else the CPU.
c10::Device main_device_of(const DeviceMap& map) {
  for (const auto& [name, place] : map) {
    if (!place.is_disk() && !place.is_cpu()) return place.device();
  }
  return c10::kCPU;
}

std::vector<std::string> sorted_names(const std::unordered_map<std::string, const StoredTensor*>& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

/// From eight cores on, an eighth is left to the threads that compute: where readers keep all of them busy, kernels begin late.
int reading_threads() {
  const unsigned cores = std::thread::hardware_concurrency();
  return static_cast<int>(std::clamp(cores - cores / 8, 2U, 16U));
}

/// A tensor on a storage that somebody else made, laid out like another.
at::Tensor tensor_on(const c10::Storage& storage, const at::Tensor& like, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype).device(storage.device()));
  tensor.set_(storage, like.storage_offset(), like.sizes(), like.strides());
  return tensor;
}

/// A storage whose bytes come and go.
c10::intrusive_ptr<c10::StorageImpl> absent_storage(uint64_t bytes, c10::Device device) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes),
                                               c10::DataPtr(nullptr, device), nullptr, /*resizable=*/false);
}

}  // namespace

bool is_kept_in_float32(const std::string& name, const std::vector<std::string>& modules) {
  return std::any_of(modules.begin(), modules.end(),
                     [&](const std::string& module) { return name == module || name.find(module + ".") != std::string::npos; });
}

Dispatcher::Dispatcher(const torch::nn::Module& module, DeviceMap map, const DispatchOptions& options)
    : module_(module),
      map_(std::move(map)),
      options_(options),
      main_device_(Place(options.main_device.value_or(main_device_of(map_))).device()),
      groups_(weight_groups(module, options.preload_module_classes)) {
  for (const auto& group : groups_) weights_.push_back({.group = &group, .dtype = group.tensor().scalar_type()});
}

Place Dispatcher::place_of(const WeightGroup& group) const {
  if (map_.empty()) return Place(group.tensor().is_meta() ? main_device_ : group.tensor().device());
  const Place place = map_.place_of(group.name()).value_or(Place(main_device_));
  return is_offloaded(place) && group.is_buffer() && !options_.offload_buffers ? Place(main_device_) : place;
}

void Dispatcher::take_checkpoint(const CheckpointRules& rules) {
  if (!rules.together) return fit_checkpoint(rules);
  together_ = rules.together;
  where_ = rules.where;
  host_ = host_group(*together_, where_);
  const std::string failure = failure_of([&] { fit_checkpoint(rules); });
  throw_failure(kLoadCall, shared_failure(*together_, failure, where_));
}

void Dispatcher::fit_checkpoint(const CheckpointRules& rules) {
  stored_ = list_stored_tensors(rules.path);
  for (const auto& tensor : stored_) {
    const std::string name = rules.new_name ? rules.new_name(tensor.name) : tensor.name;
    if (!name.empty()) by_name_[name] = &tensor;
  }
  auto unexpected = by_name_;
  std::vector<std::string> missing, misshapen;
  for (auto& weight : weights_) {
    for (const auto& each : weight.group->weights) {
      const auto found = by_name_.find(each.name);
      if (found == by_name_.end()) continue;
      unexpected.erase(each.name);
      if (!weight.stored) weight.stored = found->second;
      if (at::IntArrayRef(found->second->shape) != each.tensor.sizes()) {
        misshapen.push_back(fmt::format("{} ([{}] in the checkpoint, {} in the model)", each.name,
                                        fmt::join(found->second->shape, ", "), describe(each.tensor)));
      }
    }
    if (!weight.stored) missing.push_back(weight.group->name());
    if (rules.dtype && at::isFloatingType(weight.dtype))
      weight.dtype = is_kept_in_float32(weight.group->name(), rules.in_float32) ? at::kFloat : *rules.dtype;
  }
  report(rules, missing, sorted_names(unexpected), misshapen);
  if (!host_) return;
  const bool on_disk = std::any_of(weights_.begin(), weights_.end(), [&](const Weight& weight) { return goes_to_disk(weight); });
  if (!on_disk && !options_.mmap) return;
  throw UsageError(
      fmt::format("broadcast_from_rank0 is set, but {}. Leave it out: the ranks of a host read the same pages of files.",
                  on_disk ? "weights are offloaded to disk" : "mmap is, too"));
}

void Dispatcher::report(const CheckpointRules& rules, const std::vector<std::string>& missing,
                        const std::vector<std::string>& unexpected, const std::vector<std::string>& misshapen) const {
  const auto listed = [](const char* title, const std::vector<std::string>& names, const char* between) {
    return names.empty() ? std::string()
                         : fmt::format("\n  {}: {}", title, escaped(fmt::format("{}", fmt::join(names, between))));
  };
  const std::string differs = rules.strict ? listed("missing", missing, " ") + listed("unexpected", unexpected, " ") : "";
  if (!misshapen.empty() || !differs.empty()) {
    throw CheckpointError(fmt::format("{} does not fit the module {}.{}{}", rules.path, module_.name(), differs,
                                      listed("shape mismatch", misshapen, ", ")));
  }
  if (unexpected.empty()) return;
  get_logger("accelerate")
      .warning("{} has weights that the model lacks: {}.", escaped(rules.path),
               escaped(fmt::format("{}", fmt::join(unexpected, ", ")), kLongestQuote));
}

bool Dispatcher::converts(const Weight& weight) const {
  return host_ || !weight.group->is_one_tensor() || !weight.stored || !weight.stored->in_place ||
         weight.stored->dtype != weight.dtype;
}

bool Dispatcher::may_map(const StoredTensor& stored) const {
  return options_.mmap && stored.offset % c10::elementSize(stored.dtype) == 0;
}

bool Dispatcher::is_mapped(const Weight& weight) const {
  if (!main_device_.is_cpu() || !goes_to_disk(weight)) return false;
  if (weight.written) return may_map(*weight.written);
  return converts(weight) ? options_.mmap : may_map(*weight.stored);
}

uint64_t Dispatcher::bytes_needed(const Weight& weight) const {
  if (!weight.group->is_one_tensor()) return weight.group->storage_bytes();
  return static_cast<uint64_t>(weight.group->tensor().numel()) * c10::elementSize(weight.dtype);
}

at::Tensor Dispatcher::read(const StoredTensor& stored) const {
  if (!host_) return read_stored_tensor(stored);
  at::Tensor elements;
  const std::string failure = failure_of([&] {
    elements = host_->is_main_process() ? read_stored_tensor(stored).contiguous() : at::empty(stored.shape, stored.dtype);
  });
  throw_failure(kLoadCall, shared_failure(*together_, failure, where_));
  broadcast_memory(*host_, elements.mutable_data_ptr(), elements.nbytes(), kLoadCall, where_);
  return elements;
}

at::Tensor Dispatcher::value_of(const Weight& weight) const {
  if (weight.stored) return read(*weight.stored).to(weight.dtype);
  const at::Tensor& tensor = weight.group->tensor();
  // A copy where it is offloaded already: its bytes may go again.
  if (!tensor.is_meta()) return (record_of(tensor) ? tensor.clone() : tensor.detach()).to(at::kCPU, weight.dtype);
  if (const auto log = InitLog::of(tensor)) return log->replay(std::vector{tensor})[0].to(weight.dtype);
  throw CheckpointError(
      fmt::format("The weight {} is on the meta device and has no data: the checkpoint lacks it, and it was not created under "
                  "InitEmptyWeights.",
                  weight.group->name()));
}

at::Tensor Dispatcher::storage_of(const Weight& weight) const {
  const WeightGroup& group = *weight.group;
  if (weight.dtype != group.tensor().scalar_type()) {
    throw UsageError(fmt::format(
        "{} cannot be converted to another dtype: it is a non-contiguous view. Leave dtype out, or make it contiguous.",
        group.name()));
  }
  at::Tensor bytes = at::empty({static_cast<int64_t>(group.storage_bytes())}, at::kByte);
  bytes.zero_();
  for (const auto& each : group.weights) {
    const WeightGroup alone{.weights = {each}, .unit = group.unit};
    Weight one{.group = &alone, .dtype = each.tensor.scalar_type()};
    if (const auto found = by_name_.find(each.name); found != by_name_.end()) one.stored = found->second;
    tensor_on(bytes.storage(), each.tensor, one.dtype).copy_(value_of(one));
  }
  return bytes;
}

void Dispatcher::set_data(Weight& weight, const at::Tensor& elements) {
  const bool one = weight.group->is_one_tensor();
  for (const auto& each : weight.group->weights) {
    // Views of one memory keep their own layouts.
    weight.data.push_back(one ? elements : tensor_on(elements.storage(), each.tensor, each.tensor.scalar_type()));
    const at::ScalarType dtype = weight.data.back().scalar_type();
    if (!each.tensor.requires_grad() || at::isFloatingType(dtype) || at::isComplexType(dtype)) continue;
    throw UsageError(
        fmt::format("{} requires gradients, which {} cannot have. Choose a floating-point dtype, or freeze it first.", each.name,
                    c10::toString(dtype)));
  }
}

void Dispatcher::prepare_resident(Weight& weight, c10::Device device) {
  const at::Tensor& tensor = weight.group->tensor();
  if (!weight.stored && tensor.device() == device && tensor.scalar_type() == weight.dtype && !record_of(tensor)) return;
  if (!weight.group->is_one_tensor()) {
    set_data(weight, storage_of(weight).to(device));
  } else if (!converts(weight) && device.is_cpu() && may_map(*weight.stored)) {
    set_data(weight, mapped_tensor(weight.stored->file, weight.stored->offset, tensor.sizes(), weight.dtype));
  } else if (converts(weight) && (device.is_cpu() || device.is_meta())) {
    set_data(weight, value_of(weight).to(device));
  } else {
    const at::Tensor elements = at::empty(tensor.sizes(), at::TensorOptions().dtype(weight.dtype).device(device));
    set_data(weight, elements);
    auto store = converts(weight) ? store_in_memory(bytes_of(value_of(weight).contiguous())) : store_at(*weight.stored);
    if (!device.is_meta()) loads_[device].push_back({std::move(store), bytes_of(elements)});
  }
}

std::shared_ptr<WeightStore> Dispatcher::store_at(const StoredTensor& stored) {
  if (is_own_file(stored)) return store_of_file(stored.file, stored.bytes(), /*writable=*/false);
  auto& file = files_[stored.file];
  if (!file) file = open_checkpoint_file(stored.file);
  return store_in_file(file, stored.offset, stored.bytes());
}

OffloadWriter& Dispatcher::writer(const std::string& weight) {
  if (options_.offload_dir.empty()) {
    throw UsageError(fmt::format(
        "{} is offloaded to disk, but no file holds it in the needed form. Set offload_folder (offload_dir for dispatch_model).",
        weight));
  }
  if (!writer_) writer_.emplace(options_.offload_dir);
  return *writer_;
}

void Dispatcher::prepare_on_host(Weight& weight) {
  const WeightGroup& group = *weight.group;
  const at::Tensor& tensor = group.tensor();
  if (!group.is_one_tensor() || converts(weight)) {
    at::Tensor value = group.is_one_tensor() ? value_of(weight).contiguous() : storage_of(weight);
    // What the model has in memory already stays where it lies; only what was made for it is pinned.
    if (value.storage().unsafeGetStorageImpl() != tensor.storage().unsafeGetStorageImpl()) {
      const at::Tensor pinned = pinned_.take(value.nbytes());
      pinned.copy_(bytes_of(value));
      value = pinned;
    }
    weight.store = store_in_memory(bytes_of(value));
    return;
  }
  const at::Tensor bytes = pinned_.take(weight.stored->bytes());
  loads_[Place(c10::kCPU)].push_back({store_at(*weight.stored), bytes});
  weight.store = store_in_memory(bytes);
}

void Dispatcher::prepare_on_disk(Weight& weight) {
  const WeightGroup& group = *weight.group;
  OffloadWriter::Written written;
  const StoredTensor* place = weight.written ? weight.written : weight.stored;
  if (!weight.written && converts(weight)) {
    written = writer(group.name()).write(name_on_disk(group), group.is_one_tensor() ? value_of(weight) : storage_of(weight));
    place = &written.tensor;
  }
  if (is_mapped(weight)) {
    const std::string& file = written.staged.empty() ? place->file : written.staged;
    set_data(weight, mapped_tensor(file, place->offset, place->shape, place->dtype));
  } else {
    const bool ours = place == &written.tensor || (weight.written && is_own_file(*place));
    weight.store = ours ? store_of_file(place->file, place->bytes(), /*writable=*/true, written.staged) : store_at(*place);
  }
}

void Dispatcher::read_all() {
  for (auto& [place, loads] : loads_) {
    const c10::Device device = place.device();
    std::optional<CopyLane> lane;
    if (!device.is_cpu()) {
      lane.emplace(device, reading_threads());
      lane->wait(current_stream(device));  // which may still use the memory that was given to us
    }
    const auto transfer = std::make_shared<Transfer>(std::move(loads), lane ? &*lane : nullptr);
    IoThreadPool io_threads(reading_threads() - 1);
    io_threads.submit(transfer, true);
    transfer->finish();
    if (lane) lane->synchronize();
  }
}

bool Dispatcher::goes_to_disk(const Weight& weight) const {
  return place_of(*weight.group).is_disk() && weight.group->storage_bytes() > 0;
}

void Dispatcher::take_offloaded() {
  const bool any = std::any_of(weights_.begin(), weights_.end(), [&](const Weight& weight) { return goes_to_disk(weight); });
  if (!any || options_.offload_dir.empty()) return;
  // Before the folder is read: a process that is filling it has no index yet.
  writer_.emplace(options_.offload_dir);
  offloaded_ = offloaded_before(options_.offload_dir);
  std::vector<std::pair<Weight*, const StoredTensor*>> all;
  bool drops = false;
  for (auto& weight : weights_) {
    if (!goes_to_disk(weight)) continue;
    const StoredTensor* found = find_offloaded(offloaded_, *weight.group);
    if (!found) return;
    all.push_back({&weight, found});
    const at::Tensor& tensor = weight.group->tensor();
    drops |= !tensor.is_meta() && !record_of(tensor);
  }
  for (const auto& [weight, stored] : all) weight->written = stored;
  if (!drops) return;
  get_logger("accelerate")
      .warning("{} already has the weights that are offloaded to disk: they are used instead of those in memory.",
               options_.offload_dir);
}

uint64_t Dispatcher::budget(std::optional<uint64_t> limit) const {
  OffloadNeeds needs{.device = main_device_, .limit = limit};
  if (options_.offload_budget) needs.budget = static_cast<uint64_t>(options_.offload_budget->bytes());
  std::unordered_map<std::string, uint64_t> units;
  for (const auto& weight : weights_) {
    const WeightGroup& group = *weight.group;
    const Place place = place_of(group);
    if (place == Place(main_device_)) needs.resident += group.storage_bytes();
    if (!is_offloaded(place) || group.storage_bytes() == 0 || is_mapped(weight)) continue;
    const uint64_t bytes = units[group.unit] += room_for(bytes_needed(weight), main_device_);
    if (bytes <= needs.largest) continue;
    needs.largest = bytes;
    needs.largest_name = group.unit.substr(0, group.unit.find_last_not_of('.') + 1);
  }
  return units.empty() ? 0 : offload_budget_of(needs);
}

std::shared_ptr<Pager> Dispatcher::make_pager(uint64_t budget) {
  std::vector<std::vector<Weight*>> units;
  std::unordered_map<std::string, size_t> places;
  for (auto& weight : weights_) {
    if (!weight.store) continue;
    const auto [place, fresh] = places.try_emplace(weight.group->unit, units.size());
    if (fresh) units.emplace_back();
    units[place->second].push_back(&weight);
  }
  if (units.empty()) return nullptr;
  auto pager = std::make_shared<Pager>(PagerOptions{.device = main_device_, .budget = budget, .threads = reading_threads()});
  intercept_operators();
  for (const auto& weights : units) {
    std::vector<Pager::NewWeight> managed;
    for (Weight* weight : weights) {
      const auto storage = absent_storage(weight->store->size(), main_device_);
      managed.push_back({weight->group->name(), storage, weight->store});
      set_data(*weight, tensor_on(storage, weight->group->tensor(), weight->dtype));
    }
    pager->add_unit(std::move(managed));
  }
  return pager;
}

std::shared_ptr<DispatchCore> Dispatcher::run(std::optional<uint64_t> limit) {
  const uint64_t bytes = budget(limit);
  for (const auto& weight : weights_) {
    if (place_of(*weight.group).is_cpu()) pinned_.expect(weight.group->storage_bytes());
  }
  for (auto& weight : weights_) {
    const Place place = place_of(*weight.group);
    if (!is_offloaded(place) || weight.group->storage_bytes() == 0) {
      prepare_resident(weight, is_offloaded(place) ? main_device_ : place.device());
    } else if (place.is_disk()) {
      prepare_on_disk(weight);
    } else {
      prepare_on_host(weight);
    }
  }
  read_all();
  auto core = std::make_shared<DispatchCore>();
  core->map = map_;
  core->main_device = main_device_;
  core->pager = make_pager(bytes);
  prepare_calls(*core);
  if (writer_) writer_->stage_index();
  if (writer_) writer_->finish();  // as a whole or not at all
  // Here ends what can fail.
  writer_.reset();
  commit(core->crosses_devices);
  return core;
}

void Dispatcher::prepare_calls(DispatchCore& core) const {
  std::set<Place> devices;
  for (const auto& weight : weights_) {
    const at::Tensor& tensor = weight.data.empty() ? weight.group->tensor() : weight.data[0];
    if (weight.group->storage_bytes() > 0) devices.insert(tensor.device());
  }
  core.crosses_devices = devices.size() > 1;
  core.input_device = devices.size() == 1 ? devices.begin()->device() : main_device_;
  core.skip_keys = options_.skip_keys;
  if (core.crosses_devices) intercept_operators();
}

void Dispatcher::commit(bool crosses_devices) const {
  // Bytes alone change hands: those of a weight that was offloaded before are not paged in for it.
  const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
  for (const auto& weight : weights_) {
    for (size_t i = 0; i < weight.group->weights.size(); ++i) {
      const auto& [name, tensor, buffer] = weight.group->weights[i];
      if (!weight.data.empty()) make_real(tensor, weight.data[i]);
      // Operators go to where a parameter is; buffers, such as masks, come to what they are used with.
      set_key(tensor, weight.store || (crosses_devices && !buffer));
    }
  }
}

}  // namespace accelerate::detail
