// The headers of the target accelerate_torch_headers, which CMake wants a source for.
