# Finds LibTorch (locate_torch.cmake says in which order) and defines
#   accelerate::torch          what our library links; accelerateConfig.cmake defines the same name for consumers
#   ACCELERATE_TORCH_HAS_CUDA  whether this is a CUDA build and a CUDA toolkit is here; without a toolkit its CPU part is used
#   ACCELERATE_TORCH_HAS_NCCL  whether NCCL's header is here too
# Consumers of the installed package do not use this file.

# A path found by an earlier run may be gone (a removed build/venv); one that the user gave is never replaced silently.
if(Torch_DIR AND Torch_DIR STREQUAL ACCELERATE_LOCATED_TORCH AND NOT EXISTS "${Torch_DIR}/TorchConfig.cmake")
  unset(Torch_DIR CACHE)
endif()
include(${CMAKE_CURRENT_LIST_DIR}/locate_torch.cmake)
if(NOT ACCELERATE_TORCH_DIR)
  message(FATAL_ERROR "No usable LibTorch was found: run scripts/setup (make does), or give one with -DTorch_DIR=<folder of TorchConfig.cmake>.")
endif()
if(NOT Torch_DIR)
  set(Torch_DIR "${ACCELERATE_TORCH_DIR}" CACHE PATH "Folder of TorchConfig.cmake")
  set(ACCELERATE_LOCATED_TORCH "${ACCELERATE_TORCH_DIR}" CACHE INTERNAL "The Torch_DIR that was found automatically")
endif()
get_filename_component(accelerate_torch_root "${ACCELERATE_TORCH_DIR}/../../.." ABSOLUTE)
accelerate_torch_version("${ACCELERATE_TORCH_DIR}" ACCELERATE_TORCH_VERSION)

set(ACCELERATE_TORCH_HAS_CUDA OFF)
set(accelerate_torch_part "")
if(EXISTS "${accelerate_torch_root}/lib/libtorch_cuda.so")
  if(ACCELERATE_NVCC)
    set(ACCELERATE_TORCH_HAS_CUDA ON)
  else()
    set(accelerate_torch_part ", a CUDA build: its CPU part alone, because no CUDA toolkit was found (nvcc on PATH)")
  endif()
endif()
message(STATUS "LibTorch ${ACCELERATE_TORCH_VERSION} in ${accelerate_torch_root}${accelerate_torch_part}")
if(ACCELERATE_REQUIRE_CUDA AND NOT ACCELERATE_TORCH_HAS_CUDA)
  message(FATAL_ERROR "The preset cuda needs a CUDA build of LibTorch and a CUDA toolkit (nvcc on PATH), and not both are here: "
    "install a CUDA wheel of torch for python3, or give one with -DTorch_DIR=<folder of TorchConfig.cmake>.")
endif()
if(ACCELERATE_TORCH_HAS_CUDA)
  # Torch's files look for the toolkit around the nvcc on PATH, which may be off PATH or a script that calls the real one: nvcc itself knows.
  if(NOT CUDA_TOOLKIT_ROOT_DIR AND NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    execute_process(COMMAND "${ACCELERATE_NVCC}" --dryrun probe.cu ERROR_VARIABLE accelerate_nvcc_says OUTPUT_QUIET)
    if(accelerate_nvcc_says MATCHES "TOP=([^\n]+)")
      get_filename_component(accelerate_toolkit "${CMAKE_MATCH_1}" REALPATH)
      set(CUDA_TOOLKIT_ROOT_DIR "${accelerate_toolkit}" CACHE PATH "The CUDA toolkit")
      set(CMAKE_CUDA_COMPILER "${accelerate_toolkit}/bin/nvcc" CACHE FILEPATH "nvcc")
    endif()
  endif()
  # We compile no device code. Naming an architecture keeps Torch from asking a GPU that the building machine may not have.
  if(NOT TORCH_CUDA_ARCH_LIST AND NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
    set(TORCH_CUDA_ARCH_LIST 9.0)
  endif()
endif()

# By this name, and not as paths, torch goes into the installed package: so that another one can be given there.
accelerate_add_torch("${ACCELERATE_TORCH_DIR}" ${ACCELERATE_TORCH_HAS_CUDA})
set_property(TARGET accelerate::torch PROPERTY IMPORTED_GLOBAL TRUE)
if("${TORCH_LIBRARIES}" MATCHES "([A-Za-z_]+)-NOTFOUND")
  message(FATAL_ERROR "The LibTorch in ${accelerate_torch_root} links a library of the CUDA toolkit that is not here (${CMAKE_MATCH_1}): "
    "install the whole toolkit, or use a CPU build (remove build/venv when it is the one there).")
endif()

set(ACCELERATE_TORCH_HAS_NCCL OFF)
if(ACCELERATE_TORCH_HAS_CUDA)
  find_path(ACCELERATE_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(ACCELERATE_NCCL_INCLUDE)
    set(ACCELERATE_TORCH_HAS_NCCL ON)
  endif()
endif()
