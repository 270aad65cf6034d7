# The fuzzers of tests/fuzz (preset fuzz): every parser of files that a user or a damaged disk hands
# the program, compiled by clang with its sanitizers. None of this needs LibTorch.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "the fuzzers need clang++, with libFuzzer")
endif()
add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
                    -fno-omit-frame-pointer)

set(torch_version none)
set(cuda_literal false)
configure_file(scripts/cmake/headlab_build.h.in generated/headlab_build.h @ONLY)
include_directories(${CMAKE_BINARY_DIR}/generated)

file(GLOB fuzzed CONFIGURE_DEPENDS
     core/config/*.cpp experiments/files/*.cpp experiments/text/*.cpp experiments/system/*.cpp
     experiments/data/formats/*.cpp experiments/data/tokenizers/*.cpp)
list(FILTER fuzzed EXCLUDE REGEX "/h5[^/]*$|/digits_file.cpp$|/bpe_training.cpp$")
# An OBJECT library: kinds of tokenizers register themselves.
add_library(headlab_fuzzed OBJECT
  ${fuzzed} tests/fuzz/build_facts.cpp tests/fuzz/fuzzing.cpp
  experiments/cases/case_settings.cpp
  experiments/runs/checkpoint_state.cpp experiments/runs/run_code.cpp experiments/runs/run_files.cpp
  experiments/runs/run_manifest.cpp experiments/runs/run_metrics.cpp
  experiments/sweeps/sweep_file.cpp experiments/comparison/comparison_file.cpp)
target_include_directories(headlab_fuzzed SYSTEM PUBLIC ${HDF5_INCLUDE_DIR} ${utf8proc_INCLUDE_DIR})
target_link_libraries(headlab_fuzzed PUBLIC
  yaml-cpp fmt::fmt nlohmann_json::nlohmann_json ZLIB::ZLIB ${HDF5_LIBRARIES} OpenSSL::Crypto
  ${utf8proc_LIBRARIES})

file(GLOB targets CONFIGURE_DEPENDS tests/fuzz/fuzz_*.cpp)
foreach(source IN LISTS targets)
  cmake_path(GET source STEM name)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE headlab_fuzzed)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
endforeach()
