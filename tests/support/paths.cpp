#include "support/paths.h"

const char* const kProjectFolder = ACCELERATE_TEST_PROJECT;
