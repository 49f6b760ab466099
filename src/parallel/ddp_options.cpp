#include <accelerate/core/error.h>
#include <accelerate/parallel/ddp_options.h>

#include <string>

namespace accelerate::detail {
namespace {

void check_comm_hook(CommHook hook, const char* option) {
  if (hook == CommHook::no || hook == CommHook::fp16 || hook == CommHook::bf16) return;
  throw UsageError(std::string(option) + " is number " + std::to_string(static_cast<int>(hook)) +
                   ", which is none of CommHook::no, fp16 and bf16.");
}

}  // namespace

void check_ddp_options(const DdpOptions& options) {
  if (options.bucket_cap_mb < 1) {
    throw UsageError("bucket_cap_mb is " + std::to_string(options.bucket_cap_mb) +
                     ": a bucket holds at least 1 MiB. The default is 25.");
  }
  check_comm_hook(options.comm_hook, "comm_hook");
  check_comm_hook(options.comm_wrapper, "comm_wrapper");
}

}  // namespace accelerate::detail
