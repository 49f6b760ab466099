#pragma once

#include <accelerate/checkpoint/tensor_dict.h>
#include <accelerate/distributed/value.h>

#include <unordered_map>

#include "formats/torch_file.h"

/// Plain data with tensors as torch.save and torch.load have them.
namespace accelerate::detail {

/// A tree to be written, and the storages that its tensors lie in. Tensors that share memory share it in the file as well, and
/// a view brings all of the memory it is a view of, as in Python.
class ValueTree {
 public:
  PickleNode* node(const Value& value);
  PickleNode* node(const at::Tensor& tensor);
  PickleTree& tree() { return tree_; }
  /// Writes the file. `tree().root` is set.
  void write(ByteSink& sink, const std::string& archive) const;

 private:
  PickleNode* dict_node(const StateDict& dict, PickleKind kind);

  PickleTree tree_;
  std::unordered_map<const void*, std::string> keys_;
  std::vector<at::Tensor> storages_;  // bytes, in the order of their keys
};

/// Reads the values of a file, each storage once. Numpy arrays and bytes become tensors, sets lists, and dtypes and devices text.
class ValueReader {
 public:
  explicit ValueReader(const TorchFile& file) : file_(&file), name_(file.source().name()) {}
  /// Of plain data of the file `name`: tensors are refused.
  explicit ValueReader(std::string name) : name_(std::move(name)) {}
  /// CheckpointError, naming the file, for what a Value cannot hold.
  Value value(const PickleNode& node);
  at::Tensor tensor(const PickleTensor& tensor);

 private:
  StateDict dict(const PickleDict& items);
  at::Tensor array(const PickleArray& array);
  [[noreturn]] void refuse(const std::string& what) const;

  const TorchFile* file_ = nullptr;
  std::string name_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

/// The file that torch.save makes of this value.
void write_value(ByteSink& sink, const std::string& archive, const Value& value);
Value read_value(const ByteSource& source);

}  // namespace accelerate::detail
