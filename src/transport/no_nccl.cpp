#include "transport/nccl.h"

namespace accelerate::detail {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int, std::chrono::milliseconds) {
  return nullptr;
}

}  // namespace accelerate::detail
