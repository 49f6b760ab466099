#pragma once

#include <cstddef>
#include <string>
#include <vector>

/// The names of the files of a checkpoint: Python's, and those of our own, which Python passes over.
namespace accelerate::detail {

inline constexpr char kScaler[] = "scaler.pt", kOwnState[] = "accelerate_state.bin";
/// These and the number of the rank, or of the object.
inline constexpr char kRandomStates[] = "random_states_", kGradients[] = "accelerate_gradients_",
                      kHookStates[] = "accelerate_comm_hooks_", kRegistered[] = "custom_checkpoint_";

/// "optimizer.bin", "optimizer_1.bin".
std::string numbered_name(const std::string& stem, size_t number, const std::string& extension);
/// Of a model's weights: the first that is there is read. The last is the folder of a distributed checkpoint.
std::vector<std::string> model_names(size_t number);
/// The file of an optimizer's state, and the folder that there is instead of it for shards.
std::string optimizer_name(size_t number);
std::string optimizer_folder(size_t number);
/// Of a sharded model: the folder of its shards, and the file of the whole weights, as Python's FSDP names them.
std::string sharded_model_folder(size_t number);
std::string sharded_model_name(size_t number);
std::string registered_name(size_t number);
std::string random_states_name(int rank);
std::string gradients_name(int rank);
std::string hook_states_name(int rank);

/// A parameter among those of all models: "0.fc.weight".
std::string parameter_key(size_t model, const std::string& name);
/// A rank's piece of a sharded parameter: "piece.0.fc.weight".
std::string piece_key(size_t model, const std::string& name);
inline constexpr char kPiece[] = "piece.";

/// Whether it is the name of a file that save_state writes, here or in Python, or the path of one in a folder of shards. Exact:
/// others in the folder are the user's.
bool is_checkpoint_file(const std::string& name);

}  // namespace accelerate::detail
