#!/usr/bin/env bash
# Which LibTorch is taken, and what is said when it cannot be used. The LibTorches here are folders with the files CMake looks at.
# shellcheck source=tests/checks/claims.sh
source "$(dirname "$0")/claims.sh"

# make_torch PREFIX VERSION: a LibTorch as far as CMake can see.
make_torch() {
  mkdir -p "$1/lib" "$1/share/cmake/Torch"
  echo "add_library(torch INTERFACE IMPORTED)
set(TORCH_LIBRARIES torch)" >"$1/share/cmake/Torch/TorchConfig.cmake"
  echo "set(PACKAGE_VERSION $2)
if(NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()" >"$1/share/cmake/Torch/TorchConfigVersion.cmake"
}

# A repository of our own, because build/venv is looked for beside the cmake folder.
tree=$scratch/tree
mkdir -p "$tree/cmake" "$scratch/bin"
cp "$root"/cmake/{find_torch,locate_torch,accelerateTorch}.cmake "$tree/cmake"
cat >"$tree/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES NONE)
include(cmake/find_torch.cmake)
message(STATUS "HAS_CUDA=${ACCELERATE_TORCH_HAS_CUDA} HAS_NCCL=${ACCELERATE_TORCH_HAS_NCCL}")
get_target_property(links accelerate::torch INTERFACE_LINK_LIBRARIES)
get_target_property(options accelerate::torch INTERFACE_LINK_OPTIONS)
message(STATUS "LINKS=${links} OPTIONS=${options}")
END

# python_with FILE FOLDER: a python3 whose torch lies in FOLDER.
python_with() {
  mkdir -p "$(dirname "$1")"
  printf '#!/bin/sh\necho "%s"\n' "$2" >"$1"
  chmod +x "$1"
}

# configure ARGUMENTS...: a fresh build folder, no CUDA toolkit unless $no_toolkit is OFF, and no LibTorch but those of this test.
configure() {
  rm -rf "$scratch/build"
  reconfigure "$@"
}
reconfigure() {
  run env -u Torch_DIR -u CMAKE_PREFIX_PATH -u CUDACXX PATH="$scratch/bin:$PATH" "${environment[@]}" \
    cmake -S "$tree" -B "$scratch/build" -G Ninja -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit="$no_toolkit" "$@"
}
environment=(A=b) no_toolkit=ON

make_torch "$scratch/given" 2.13.0
make_torch "$scratch/prefixed" 2.13.0
make_torch "$scratch/of_python" 2.13.0
make_torch "$scratch/private" 2.13.0
make_torch "$scratch/old" 2.8.1
make_torch "$scratch/cuda" 2.11.0
touch "$scratch/cuda/lib/"lib{torch_cpu,torch_cuda,c10}.so
make_torch "$scratch/cpu" 2.12.0
touch "$scratch/cpu/lib/"lib{torch_cpu,c10}.so

python_with "$scratch/bin/python3" ""
configure
claim "no LibTorch at all is said with what to do" fails
claim "no LibTorch at all names scripts/setup and Torch_DIR" says "No usable LibTorch was found: run scripts/setup (make does), or give one with -DTorch_DIR"

python_with "$tree/build/venv/bin/python3" "$scratch/private"
configure
claim "the private environment is used when nothing else is there" says "LibTorch 2.13.0 in $scratch/private"
claim "a CPU build has neither CUDA nor NCCL" says "HAS_CUDA=OFF HAS_NCCL=OFF"
claim "a LibTorch of another shape is linked as its TorchConfig.cmake says" says "LINKS=stdc++;torch OPTIONS="

python_with "$scratch/bin/python3" "$scratch/of_python"
configure
claim "the torch of python3 comes before the private one" says "in $scratch/of_python"
configure -DCMAKE_PREFIX_PATH="$scratch/prefixed"
claim "CMAKE_PREFIX_PATH comes before python3" says "in $scratch/prefixed"
configure -DCMAKE_PREFIX_PATH="$scratch/prefixed/share/cmake"
claim "torch.utils.cmake_prefix_path is understood" says "in $scratch/prefixed"
configure -DTorch_DIR="$scratch/given/share/cmake/Torch" -DCMAKE_PREFIX_PATH="$scratch/prefixed"
claim "Torch_DIR comes before CMAKE_PREFIX_PATH" says "in $scratch/given"
environment=(CMAKE_PREFIX_PATH="/no/such:$scratch/prefixed") && configure
claim "CMAKE_PREFIX_PATH of the environment comes before python3" says "in $scratch/prefixed"
environment=(Torch_DIR="$scratch/given/share/cmake/Torch") && configure
claim "Torch_DIR of the environment comes before python3" says "in $scratch/given"
environment=(A=b)

configure -DTorch_DIR=/no/such
claim "a wrong Torch_DIR is refused" fails
claim "a wrong Torch_DIR is named" says "Torch_DIR is /no/such, which holds no TorchConfig.cmake"
configure -DTorch_DIR="$scratch/old/share/cmake/Torch"
claim "LibTorch below 2.9 is refused" fails
claim "LibTorch below 2.9 is refused with a sentence" says "LibTorch 2.8.1 in $scratch/old is too old: 2.9 or newer is needed."

# TorchConfig.cmake of a CUDA build asks for a toolkit: without one nobody may read it.
echo 'message(FATAL_ERROR "Caffe2: CUDA cannot be found")' >"$scratch/no_toolkit"
cp "$scratch/no_toolkit" "$scratch/cuda/share/cmake/Torch/TorchConfig.cmake"
cp "$scratch/no_toolkit" "$scratch/cpu/share/cmake/Torch/TorchConfig.cmake"
configure -DTorch_DIR="$scratch/cpu/share/cmake/Torch"
claim "a CPU build is linked by its two libraries, the C++ library first" says \
  "LINKS=stdc++;$scratch/cpu/lib/libtorch_cpu.so;$scratch/cpu/lib/libc10.so OPTIONS=options-NOTFOUND"
configure -DTorch_DIR="$scratch/cuda/share/cmake/Torch"
claim "a CUDA build without a toolkit is used" succeeds
claim "which part of it is used is said, and why" says \
  "LibTorch 2.11.0 in $scratch/cuda, a CUDA build: its CPU part alone, because no CUDA toolkit was found"
claim "without a toolkit it is a CPU build to us" says "HAS_CUDA=OFF HAS_NCCL=OFF"
claim "its CPU part is linked without the CUDA runtime" says \
  "LINKS=stdc++;$scratch/cuda/lib/libtorch_cpu.so;$scratch/cuda/lib/libc10.so OPTIONS=-Wl,--allow-shlib-undefined"
configure -DTorch_DIR="$scratch/cuda/share/cmake/Torch" -DACCELERATE_REQUIRE_CUDA=ON
claim "preset cuda refuses a CUDA build without a toolkit" says "needs a CUDA build of LibTorch and a CUDA toolkit"
environment=(CUDACXX=/some/nvcc) no_toolkit=OFF && configure -DTorch_DIR="$scratch/cuda/share/cmake/Torch"
claim "with a toolkit a CUDA build is found by its own TorchConfig.cmake" says "Caffe2: CUDA cannot be found"
environment=(A=b) no_toolkit=ON

make_torch "$scratch/part" 2.13.0
sed -i 's/set(TORCH_LIBRARIES torch)/set(TORCH_LIBRARIES torch CUDA_nvrtc_LIBRARY-NOTFOUND)/' "$scratch/part/share/cmake/Torch/TorchConfig.cmake"
configure -DTorch_DIR="$scratch/part/share/cmake/Torch"
claim "half a CUDA toolkit is refused with the library that is missing" says "links a library of the CUDA toolkit that is not here (CUDA_nvrtc_LIBRARY)"

python_with "$scratch/bin/python3" "$scratch/old"
configure
claim "python3's torch that cannot be used is skipped" says "LibTorch 2.13.0 in $scratch/private"
claim "what is skipped is explained" says "Skipped: LibTorch 2.8.1 in $scratch/old is too old"
python_with "$scratch/bin/python3" "$scratch/cuda"
configure
claim "python3's CUDA build is used for its CPU part" says "LibTorch 2.11.0 in $scratch/cuda, a CUDA build"
python_with "$scratch/bin/python3" ""
configure -DACCELERATE_REQUIRE_CUDA=ON
claim "preset cuda refuses a CPU build" says "needs a CUDA build of LibTorch and a CUDA toolkit"

python_with "$scratch/bin/python3" "$scratch/of_python"
configure
rm -rf "$scratch/of_python"
python_with "$scratch/bin/python3" ""
reconfigure
claim "a LibTorch that was found and is gone is looked for again" says "LibTorch 2.13.0 in $scratch/private"
configure -DTorch_DIR="$scratch/given/share/cmake/Torch"
rm -rf "$scratch/given"
reconfigure
claim "a LibTorch that was given and is gone is never replaced in silence" says "given/share/cmake/Torch, which holds no TorchConfig.cmake"
finish
