#pragma once

#include <torch/csrc/lazy/ts_backend/ts_backend_impl.h>

/// LibTorch's lazy device: a second one that computes on any machine.
inline c10::Device other_device() {
  static const bool once = (torch::lazy::InitTorchScriptBackend(), true);
  return once ? c10::Device("lazy:0") : c10::Device("cpu");
}
