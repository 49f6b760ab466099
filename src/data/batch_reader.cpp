#include <ATen/CPUGeneratorImpl.h>
#include <accelerate/core/error.h>
#include <accelerate/data/batch_reader.h>
#include <accelerate/data/dataset_reader.h>
#include <c10/util/Exception.h>

#include <exception>

namespace accelerate::detail {
namespace {

/// Spreads a number over all 64 bits, so that seeds which differ a little give generators that differ wholly.
uint64_t scrambled(uint64_t number) {
  number += 0x9e3779b97f4a7c15;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

}  // namespace

at::Generator sample_generator(const SampleSeed& seed, int64_t index) {
  const uint64_t pass = scrambled(scrambled(seed.seed) + static_cast<uint64_t>(seed.epoch));
  return at::make_generator<at::CPUGeneratorImpl>(scrambled(pass + static_cast<uint64_t>(index)));
}

void rethrow_while(const std::string& doing) {
  const std::string ending = " (while " + doing + ")";
  try {
    throw;
  } catch (const UsageError& error) {
    std::throw_with_nested(UsageError(error.what() + ending));
  } catch (const ConfigError& error) {
    std::throw_with_nested(ConfigError(error.what() + ending));
  } catch (const DistributedError& error) {
    std::throw_with_nested(DistributedError(error.what() + ending));
  } catch (const CheckpointError& error) {
    std::throw_with_nested(CheckpointError(error.what() + ending));
  } catch (const WorkerError& error) {
    std::throw_with_nested(WorkerError(error.what() + ending, error.rank(), error.signal()));
  } catch (const c10::Error& error) {
    std::throw_with_nested(Error(error.what_without_backtrace() + ending));
  } catch (const std::exception& error) {
    std::throw_with_nested(Error(error.what() + ending));
  } catch (...) {
    std::throw_with_nested(Error("an exception without a message" + ending));
  }
}

std::string sample_text(int64_t index) { return "sample " + std::to_string(index); }

std::string samples_text(const Indices& indices) {
  constexpr size_t kMost = 16;
  if (indices.empty()) return "samples of a stream";
  std::string text = indices.size() == 1 ? "sample" : "samples";
  for (size_t i = 0; i < indices.size() && i < kMost; ++i) text += (i == 0 ? " " : ", ") + std::to_string(indices[i]);
  if (indices.size() > kMost) text += " and " + std::to_string(indices.size() - kMost) + " more";
  return text;
}

void expect_dataset(bool given) {
  if (!given) throw UsageError("DataLoader was given a null pointer to a dataset.");
}

void unstack(const Leaves& leaves) {
  for (at::Tensor* tensor : leaves.tensors) {
    if (tensor->defined() && tensor->dim() > 0) *tensor = tensor->select(0, 0);
  }
}

}  // namespace accelerate::detail
