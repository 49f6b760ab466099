# Finds a LibTorch and makes accelerate::torch of it, which is what our library links. The build includes this file, and the installed package
# brings it along, so that both link alike.

# accelerate_search_torch(OUT FOLDER...): the folder of TorchConfig.cmake under CMAKE_PREFIX_PATH, else under one of FOLDERs, else nothing.
function(accelerate_search_torch out)
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" from_environment)
  unset(found)
  find_path(found TorchConfig.cmake PATHS ${CMAKE_PREFIX_PATH} ${from_environment} ${ARGN} PATH_SUFFIXES Torch share/cmake/Torch
    NO_DEFAULT_PATH NO_CACHE)
  if(NOT found)
    set(found "")
  endif()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

function(accelerate_torch_version torch_dir out)
  set(PACKAGE_VERSION "")
  include("${torch_dir}/TorchConfigVersion.cmake" OPTIONAL)
  set(${out} "${PACKAGE_VERSION}" PARENT_SCOPE)
endfunction()

# accelerate_add_torch(TORCH_DIR WITH_CUDA): a macro, because TorchConfig.cmake sets variables that its caller may want.
macro(accelerate_add_torch torch_dir with_cuda)
  get_filename_component(accelerate_torch_root "${torch_dir}/../../.." ABSOLUTE)
  add_library(accelerate::torch INTERFACE IMPORTED)
  # The C++ library comes first: some LibTorch wheels export parts of an older std::filesystem, and a program that finds those before its
  # own crashes in remove_all (seen with 2.11.0+cu130).
  target_link_libraries(accelerate::torch INTERFACE stdc++)
  if(${with_cuda} OR NOT EXISTS "${accelerate_torch_root}/lib/libtorch_cpu.so")
    find_package(Torch 2.9 REQUIRED CONFIG PATHS "${torch_dir}" NO_DEFAULT_PATH)
    target_link_libraries(accelerate::torch INTERFACE ${TORCH_LIBRARIES})
  else()
    # TorchConfig.cmake of a CUDA build asks for a CUDA toolkit. The CPU part of either build is these two libraries, and needs none.
    target_link_libraries(accelerate::torch INTERFACE "${accelerate_torch_root}/lib/libtorch_cpu.so" "${accelerate_torch_root}/lib/libc10.so")
    target_include_directories(accelerate::torch SYSTEM INTERFACE "${accelerate_torch_root}/include"
      "${accelerate_torch_root}/include/torch/csrc/api/include")
    target_compile_definitions(accelerate::torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO USE_RPC USE_TENSORPIPE)
    # A CUDA build's own libraries find the CUDA runtime when they are loaded; the linker does not.
    if(EXISTS "${accelerate_torch_root}/lib/libtorch_cuda.so")
      target_link_options(accelerate::torch INTERFACE -Wl,--allow-shlib-undefined)
    endif()
  endif()
endmacro()
