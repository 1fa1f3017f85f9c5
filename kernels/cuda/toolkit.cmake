# Looks for what the plugin is compiled with, and sets LOCKSTEP_CUDA, which asks for it (AUTO: where all is there), to ON or OFF.
# NCCL_HOME in the environment names a directory whose include/ and lib/ hold NCCL: a Python package's, which has no libnccl.so, too.
set(oldest_cuda 12.0)  # C++20, and Hopper's instructions
set(oldest_nccl 2.17)  # ncclConfig_t::maxCTAs

include(CheckLanguage)
if(NOT DEFINED CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
  set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
check_language(CUDA)
find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS $ENV{NCCL_HOME}/lib /usr/local/cuda/lib64)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS $ENV{NCCL_HOME}/include /usr/local/cuda/include)

set(nccl_version "")
if(LOCKSTEP_NCCL_INCLUDE)
  file(STRINGS ${LOCKSTEP_NCCL_INCLUDE}/nccl.h numbers REGEX "define NCCL_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^;0-9]" "" nccl_version "${numbers}")
  string(REPLACE ";" "." nccl_version "${nccl_version}")
endif()

set(hindrance "")
if(NOT CMAKE_CUDA_COMPILER)
  set(hindrance "nvcc was not found")
elseif(NOT LOCKSTEP_NCCL_LIBRARY OR NOT LOCKSTEP_NCCL_INCLUDE)
  set(hindrance "NCCL was not found (nccl.h and libnccl.so.2; NCCL_HOME may name its directory)")
elseif(nccl_version VERSION_LESS oldest_nccl)
  set(hindrance "NCCL of ${LOCKSTEP_NCCL_INCLUDE} is ${nccl_version}, older than ${oldest_nccl}")
else()
  set(CMAKE_CUDA_ARCHITECTURES 80)  # of the compiler's check; the plugin names its own
  enable_language(CUDA)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS oldest_cuda)
    set(hindrance "CUDA of ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}, older than ${oldest_cuda}")
  endif()
endif()

if(hindrance AND LOCKSTEP_CUDA STREQUAL "ON")
  message(FATAL_ERROR "LOCKSTEP_CUDA is ON, but ${hindrance}")
elseif(hindrance)
  message(STATUS "No CUDA plugin: ${hindrance}")
  set(LOCKSTEP_CUDA OFF)
else()
  set(LOCKSTEP_CUDA ON)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know it
  find_package(CUDAToolkit REQUIRED)
  message(STATUS "CUDA plugin: CUDA ${CMAKE_CUDA_COMPILER_VERSION}, NCCL ${nccl_version} of ${LOCKSTEP_NCCL_LIBRARY}; "
    "its kernels take minutes to compile")
  if(CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()
