# Warnings for our own code. Never exported: a consumer chooses its own.
add_library(accelerate_warnings INTERFACE)
target_compile_options(accelerate_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor $<$<BOOL:${ACCELERATE_WERROR}>:-Werror>)
