#include "support/paths.h"

const char* const kGoldenFolder = ACCELERATE_TEST_GOLDEN;
