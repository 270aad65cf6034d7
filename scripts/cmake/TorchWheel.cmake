# LibTorch from the unpacked wheel in .deps/torch (scripts/setup puts it there), or from the
# site-packages that HEADLAB_TORCH_ROOT names: pip builds with the torch of the environment that it
# installs into (scripts/cmake/wheel_backend.py).
#
# Imported targets of our own: find_package(Torch) demands a CUDA toolkit even for a CPU build.
# The include folders are given by -idirafter, because the wheel carries its own fmt, pybind11, ...
# headers, which as -isystem would shadow the system's.
set(HEADLAB_TORCH_ROOT "${CMAKE_SOURCE_DIR}/.deps/torch" CACHE PATH "where the torch wheel is unpacked")
set(_torch "${HEADLAB_TORCH_ROOT}/torch")
if(NOT EXISTS "${_torch}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "LibTorch is not in ${HEADLAB_TORCH_ROOT}: run scripts/setup first")
endif()
file(STRINGS "${_torch}/version.py" _version REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" torch_version "${_version}")

# Commands name torch's headers through this link: they are alike in every build tree, wherever torch
# is, so that all build trees share what the compiler cache holds.
file(CREATE_LINK "${_torch}" "${CMAKE_BINARY_DIR}/torch" SYMBOLIC)
set(_headers "${CMAKE_BINARY_DIR}/torch/include")

add_library(torch_whole INTERFACE)
add_library(torch_wheel INTERFACE)
target_link_libraries(torch_wheel INTERFACE torch_whole)
# Headers in the place of some of torch's, of the version that they were written for: without them
# every file takes 3 s more to compile, and the precompiled header 25 s more.
if(torch_version MATCHES "^2[.]11[.]")
  target_include_directories(torch_wheel BEFORE INTERFACE ${CMAKE_SOURCE_DIR}/scripts/cmake/lean_torch)
  target_compile_definitions(torch_wheel INTERFACE AT_PER_OPERATOR_HEADERS)
endif()
# -fopenmp: without it at::parallel_for runs serially, without a word.
target_compile_options(torch_whole INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>
  "$<$<COMPILE_LANGUAGE:CXX>:-idirafter${_headers}>"
  "$<$<COMPILE_LANGUAGE:CXX>:-idirafter${_headers}/torch/csrc/api/include>")
# CMake itself puts torch/lib into the RPATH of what is built, and takes it out of what is installed.
target_link_options(torch_whole INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
# Not libtorch.so: it asks for libtorch_cuda.so, whose libraries a CPU set-up leaves out.
target_link_libraries(torch_whole INTERFACE
  "${_torch}/lib/libtorch_cpu.so" "${_torch}/lib/libc10.so" "${_torch}/lib/libgomp.so.1")

if(HEADLAB_CUDA)
  set(_cuda "${HEADLAB_TORCH_ROOT}/nvidia/cu13")
  if(NOT EXISTS "${_cuda}/lib/libcublas.so.13")
    message(FATAL_ERROR "the GPU libraries are not in ${HEADLAB_TORCH_ROOT}: run scripts/setup --cuda first")
  endif()
  if(NOT CMAKE_CUDA_COMPILER_VERSION MATCHES "^13[.]")
    message(FATAL_ERROR "this torch is built with CUDA 13; nvcc is ${CMAKE_CUDA_COMPILER_VERSION}")
  endif()
  target_compile_options(torch_whole INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-idirafter${_cuda}/include>")
  target_link_options(torch_whole INTERFACE "-Wl,-rpath,${_cuda}/lib")
  target_link_libraries(torch_whole INTERFACE
    "${_torch}/lib/libtorch_cuda.so" "${_torch}/lib/libc10_cuda.so" "${_cuda}/lib/libcudart.so.13")
endif()
