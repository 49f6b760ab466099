#pragma once

#include <string>

#include "formats/pickle_value.h"

namespace accelerate::detail {

/// The pickle (protocol 2) that Python's own pickler and torch.save make of `root`: the same values, shared in the same places,
/// give the same bytes (but for empty bytes, see PickleOutput::bytes_call). torch.load(weights_only=True) accepts it as far as it
/// accepts the kinds in it (not defaultdict, slice, frozenset, numpy arrays, objects unless allowed). UsageError for values
/// nested deeper than 400 or in a circle.
std::string write_pickle(const PickleNode& root);

}  // namespace accelerate::detail
