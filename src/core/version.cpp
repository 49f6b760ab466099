#include <accelerate/core/version.h>

namespace accelerate {

const char* version() { return ACCELERATE_VERSION; }

}  // namespace accelerate
