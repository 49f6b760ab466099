// The headers of the target torch_headers, which CMake wants a source for.
