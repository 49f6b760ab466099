#include <ATen/ops/empty.h>
#include <accelerate/checkpoint/file.h>
#include <accelerate/core/error.h>

#include <array>

#include "core/file.h"
#include "core/safetensors_header.h"
#include "distributed/logbook.h"
#include "distributed/plain_tensor.h"
#include "distributed/tensor_text.h"

namespace accelerate {
namespace {

struct DtypeName {
  at::ScalarType dtype;
  const char* name;
};
constexpr std::array<DtypeName, 19> kDtypeNames = {{{at::kByte, "U8"},
                                                    {at::kChar, "I8"},
                                                    {at::kShort, "I16"},
                                                    {at::kInt, "I32"},
                                                    {at::kLong, "I64"},
                                                    {at::kHalf, "F16"},
                                                    {at::kBFloat16, "BF16"},
                                                    {at::kFloat, "F32"},
                                                    {at::kDouble, "F64"},
                                                    {at::kBool, "BOOL"},
                                                    {at::kUInt16, "U16"},
                                                    {at::kUInt32, "U32"},
                                                    {at::kUInt64, "U64"},
                                                    {at::kComplexFloat, "C64"},
                                                    {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                    {at::kFloat8_e5m2, "F8_E5M2"},
                                                    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
                                                    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
                                                    {at::kFloat8_e8m0fnu, "F8_E8M0"}}};

const char* format_name(const at::Tensor& tensor, const std::string& name) {
  for (const auto& known : kDtypeNames) {
    if (known.dtype == tensor.scalar_type()) return known.name;
  }
  throw CheckpointError("The tensor " + name + " is " + dtype_name(tensor.scalar_type()) +
                        ", which a safetensors file cannot hold. Convert it first.");
}

at::ScalarType dtype_of(const SafetensorsEntry& entry, const std::string& file) {
  for (const auto& known : kDtypeNames) {
    if (entry.dtype == known.name) return known.dtype;
  }
  throw CheckpointError("The tensor " + entry.name + " of " + file + " is " + entry.dtype +
                        ", which this LibTorch has no dtype for.");
}

void require_safetensors(const std::filesystem::path& path) {
  if (path.extension() != ".safetensors") {
    throw UsageError(path.string() + ": this version reads and writes .safetensors files only.");
  }
}

SafetensorsEntry describe_entry(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
    throw CheckpointError("The tensor " + name + " cannot be saved: it has no dense elements (" +
                          (tensor.defined() ? "meta, sparse or quantized" : "undefined") + ").");
  }
  if (name == "__metadata__") throw CheckpointError("A tensor cannot be called __metadata__ in a safetensors file. Rename it.");
  return {name, format_name(tensor, name), tensor.sizes().vec(), 0, 0};
}

}  // namespace

void save_file(const TensorDict& tensors, const std::string& path) {
  const Busy busy("save_file", path);
  require_safetensors(path);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back(describe_entry(name, tensor));
  SafetensorsHeader header;
  const std::string start = make_safetensors_header(std::move(entries), {{"format", "pt"}}, header);
  OutputFile file(path);
  file.write(start.data(), start.size());
  for (const auto& entry : header.entries) {
    const at::Tensor elements = plain(tensors.at(entry.name).cpu());
    file.write(elements.const_data_ptr(), elements.nbytes());
  }
  file.commit();
}

TensorDict load_file(const std::string& path, c10::Device device) {
  const Busy busy("load_file", path);
  require_safetensors(path);
  const InputFile file(path);
  std::string start(std::min<uint64_t>(8, file.size()), '\0');
  file.read(start.data(), start.size(), 0);
  std::string json(safetensors_header_size(start, file.size(), file.name()), '\0');
  file.read(json.data(), json.size(), 8);
  const auto header = parse_safetensors_header(json, file.size(), file.name());
  TensorDict tensors;
  for (const auto& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(dtype_of(entry, file.name())));
    file.read(tensor.mutable_data_ptr(), entry.end - entry.begin, header.data_start + entry.begin);
    tensors[entry.name] = tensor.to(device);
  }
  return tensors;
}

}  // namespace accelerate
