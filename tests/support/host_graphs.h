#pragma once

#include "capture/graph_device.h"

/// Records operators on the CPU and calls them again, so that what is done around the graphs of a device can be tested without
/// one: as there, nothing is done while it is recorded, what is left allocated keeps its memory, and reading a number is an
/// error.
std::unique_ptr<accelerate::detail::GraphDevice> make_host_graphs(c10::Device device);
