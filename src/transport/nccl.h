#pragma once

#include "rendezvous/c10d_compat.h"

namespace accelerate::detail {

/// A backend for CUDA tensors, or null when this build has none. nccl.cpp or no_nccl.cpp answers, as CMake chose.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout);

}  // namespace accelerate::detail
