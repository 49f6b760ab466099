#include <accelerate/core/error.h>
#include <accelerate/core/ordered_map.h>

namespace accelerate::detail {

void throw_no_entry(const std::string& key) { throw UsageError("There is no key '" + key + "'."); }

}  // namespace accelerate::detail
