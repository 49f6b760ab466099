#include "activations/saved_tensor_hooks.h"

#include <accelerate/core/error.h>
#include <torch/csrc/autograd/engine.h>

#include <typeinfo>
#include <utility>

namespace accelerate::detail {
namespace {

using torch::autograd::Engine;

// Scopes belong to a thread, as grad mode and autocast do.
thread_local HookMaker* innermost_maker = nullptr;

/// LibTorch's engine, which is also what autograd asks for hooks of the tensors that it saves. Elsewhere they can only be made of
/// Python objects.
struct HookingEngine : Engine {
  HookingEngine() = default;
  // Its threads call virtual functions.
  ~HookingEngine() override { stop(); }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return innermost_maker == nullptr ? nullptr : innermost_maker->make_hooks();
  }
};

Engine& hooking_engine() {
  static HookingEngine engine;
  return engine;
}

/// Before main: the threads of devices are started once in a process, by the engine that makes the first backward pass. An engine
/// of somebody else, which is Python's, stays: it knows the interpreter's lock.
[[maybe_unused]] const bool kInstalled = [] {
  const Engine& engine = Engine::get_default_engine();
  const bool is_plain = typeid(engine) == typeid(Engine);
  if (is_plain) torch::autograd::set_default_engine_stub(&hooking_engine);
  return is_plain;
}();

}  // namespace

HookScope::HookScope(HookMaker& maker) : outer_(innermost_maker) {
  if (&Engine::get_default_engine() != &hooking_engine()) {
    throw UsageError(
        "accelerate::checkpoint and save_on_cpu need an autograd engine of their own, and another library in this process has "
        "installed one (Python's torch does). Run the training in a program that does not load it, or without checkpointing.");
  }
  innermost_maker = &maker;
}

HookScope::~HookScope() { innermost_maker = outer_; }

HookMaker* HookScope::current() { return innermost_maker; }

}  // namespace accelerate::detail
