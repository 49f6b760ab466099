# Decides which LibTorch to build with, and nothing else: sets ACCELERATE_TORCH_DIR, empty when there is none.
# The order: Torch_DIR or CMAKE_PREFIX_PATH as given by the user, the torch of the active python3, the private one in build/venv.
# One file decides for both: find_torch.cmake includes it, and scripts/setup runs it with cmake -P to learn whether one is missing.
include_guard()

# Sets `out` to a sentence that says why the LibTorch in `torch_dir` cannot be used, or to nothing.
function(accelerate_torch_unfit torch_dir out)
  set(${out} "" PARENT_SCOPE)
  get_filename_component(root "${torch_dir}/../../.." ABSOLUTE)
  set(PACKAGE_VERSION "")
  include("${torch_dir}/TorchConfigVersion.cmake" OPTIONAL)
  if(PACKAGE_VERSION AND PACKAGE_VERSION VERSION_LESS 2.9)
    set(${out} "LibTorch ${PACKAGE_VERSION} in ${root} is too old: 2.9 or newer is needed." PARENT_SCOPE)
  elseif(EXISTS "${root}/lib/libtorch_cuda.so" AND NOT ACCELERATE_NVCC)
    set(${out} "The LibTorch in ${root} is a CUDA build and no CUDA toolkit was found: install the toolkit (nvcc on PATH) or use a CPU build."
      PARENT_SCOPE)
  endif()
endfunction()

# What the torch wheel's own CMake files need is nvcc, not only the toolkit's headers.
if(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit)
  set(ACCELERATE_NVCC "")
elseif(CMAKE_CUDA_COMPILER)
  set(ACCELERATE_NVCC "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(ACCELERATE_NVCC "$ENV{CUDACXX}")
else()
  find_program(ACCELERATE_NVCC nvcc PATHS "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
endif()

set(ACCELERATE_TORCH_DIR "")
set(accelerate_given "${Torch_DIR}")
if(NOT accelerate_given)
  set(accelerate_given "$ENV{Torch_DIR}")
endif()
if(accelerate_given)
  if(NOT EXISTS "${accelerate_given}/TorchConfig.cmake")
    message(FATAL_ERROR "Torch_DIR is ${accelerate_given}, which holds no TorchConfig.cmake: give the folder share/cmake/Torch of a LibTorch.")
  endif()
  set(ACCELERATE_TORCH_DIR "${accelerate_given}")
else()
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" accelerate_prefixes)
  find_path(accelerate_torch_on_prefix TorchConfig.cmake PATHS ${CMAKE_PREFIX_PATH} ${accelerate_prefixes}
    PATH_SUFFIXES Torch share/cmake/Torch NO_DEFAULT_PATH NO_CACHE)
  if(accelerate_torch_on_prefix)
    set(ACCELERATE_TORCH_DIR "${accelerate_torch_on_prefix}")
  endif()
endif()
if(ACCELERATE_TORCH_DIR)
  accelerate_torch_unfit("${ACCELERATE_TORCH_DIR}" accelerate_unfit)
  if(accelerate_unfit)
    message(FATAL_ERROR "${accelerate_unfit}")
  endif()
endif()

# Nobody asked for what python3 happens to have, so one that cannot be used is explained and passed over.
foreach(accelerate_python IN ITEMS python3 "${CMAKE_CURRENT_LIST_DIR}/../build/venv/bin/python3")
  if(NOT ACCELERATE_TORCH_DIR)
    execute_process(COMMAND "${accelerate_python}" -c
      "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s and s.submodule_search_locations else '')"
      OUTPUT_VARIABLE accelerate_torch_package OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(accelerate_candidate "${accelerate_torch_package}/share/cmake/Torch")
    if(accelerate_torch_package AND EXISTS "${accelerate_candidate}/TorchConfig.cmake")
      accelerate_torch_unfit("${accelerate_candidate}" accelerate_unfit)
      if(NOT accelerate_unfit)
        set(ACCELERATE_TORCH_DIR "${accelerate_candidate}")
      else()
        message(NOTICE "Passed over: ${accelerate_unfit}")
      endif()
    endif()
  endif()
endforeach()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  execute_process(COMMAND "${CMAKE_COMMAND}" -E echo "${ACCELERATE_TORCH_DIR}")
endif()
