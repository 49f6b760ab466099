#pragma once

#include <accelerate/parallel/ddp_options.h>
#include <c10/core/Device.h>

#include <source_location>

namespace accelerate::detail {

class Communicator;

/// How fast all-reduces are: what one takes at the least, in seconds, and what it moves in a second beyond that.
struct CollectiveSpeed {
  double latency = 0;
  double bytes_per_second = 0;
};

/// The MiB of a bucket whose all-reduce is mostly moving bytes, and that others need not wait for long.
int bucket_mb_for(const CollectiveSpeed& speed);

/// The options with a bucket_cap_mb of at least 1. Where it is 0, all processes measure all-reduces on `device`, and the main
/// process decides for all.
DdpOptions with_bucket_size(const DdpOptions& options, Communicator& communicator, c10::Device device,
                            std::source_location where);

}  // namespace accelerate::detail
