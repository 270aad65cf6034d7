# The test programs, by the folders of tests/.
include(Catch)

function(headlab_tests_of name)
  list(TRANSFORM ARGN REPLACE "(.+)" "tests/\\1/test_*.cpp")
  file(GLOB sources CONFIGURE_DEPENDS ${ARGN})
  set(${name} ${sources} PARENT_SCOPE)
endfunction()
headlab_tests_of(test_plain core/config experiments/files experiments/text experiments/system experiments/logs
                 experiments/data/formats)
headlab_tests_of(test_heads core core/attention core/kernels core/observe variants experiments/conversion
                 experiments/measuring experiments/pruning experiments/analysis experiments/benchmarks)
headlab_tests_of(test_experiments experiments/data experiments/models experiments/pretrained experiments/runs
                 experiments/inference experiments/training experiments/cases experiments/sweeps
                 experiments/comparison experiments/ranks)
# These drive the built program and link none of it.
headlab_tests_of(test_command_line experiments/commands)
# A folder that no list above names would be left out in silence.
file(GLOB_RECURSE unlisted CONFIGURE_DEPENDS tests/test_*.cpp)
list(REMOVE_ITEM unlisted ${test_plain} ${test_heads} ${test_experiments} ${test_command_line})
if(unlisted)
  message(FATAL_ERROR "scripts/cmake/Tests.cmake names no program for ${unlisted}")
endif()
set(example_test ${CMAKE_SOURCE_DIR}/tests/core/test_example.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_example_keys.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_example_link.cpp)
list(REMOVE_ITEM test_heads ${example_test})
set(gpu_laws ${CMAKE_SOURCE_DIR}/tests/core/test_gpu_laws.cpp)
set(laws ${CMAKE_SOURCE_DIR}/tests/core/test_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_call_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_initialisation_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_input_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_option_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_precision_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_random_calls.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_shaping_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/core/test_slicing_laws.cpp
    ${CMAKE_SOURCE_DIR}/tests/experiments/measuring/test_ablation_laws.cpp ${gpu_laws})
list(REMOVE_ITEM test_heads ${laws})
set(leak_test ${CMAKE_SOURCE_DIR}/tests/experiments/inference/test_leak_check.cpp)
list(REMOVE_ITEM test_experiments ${leak_test})
set(link_test ${CMAKE_SOURCE_DIR}/tests/experiments/models/test_link.cpp)
list(REMOVE_ITEM test_experiments ${link_test})

# What test programs share beside headers: a model whose weights are written by hand.
headlab_less_optimised(${CMAKE_SOURCE_DIR}/tests/hand_built.cpp ${CMAKE_SOURCE_DIR}/tests/write_hand_built.cpp
                       ${CMAKE_SOURCE_DIR}/tests/tokenizers.cpp ${CMAKE_SOURCE_DIR}/tests/translator.cpp
                       ${CMAKE_SOURCE_DIR}/tests/added_metric.cpp)
add_library(headlab_hand_built OBJECT tests/hand_built.cpp)
headlab_torch_target(headlab_hand_built)
target_link_libraries(headlab_hand_built PUBLIC headlab_core headlab_logs)
add_executable(headlab_write_hand_built tests/write_hand_built.cpp)
headlab_torch_target(headlab_write_hand_built)
target_link_libraries(headlab_write_hand_built PRIVATE
  headlab_hand_built headlab_variants headlab_experiments)

# core and all kinds without experiments, nothing left undefined (tests/test_core_alone.py).
add_library(headlab_core_alone SHARED tests/core_alone.cpp)
headlab_torch_target(headlab_core_alone)
target_link_options(headlab_core_alone PRIVATE
  $<$<NOT:$<BOOL:${HEADLAB_SANITIZE}>>:-Wl,-z,defs>
  "LINKER:--whole-archive,$<TARGET_FILE:headlab_core>,--no-whole-archive")
target_link_libraries(headlab_core_alone PRIVATE headlab_variants)

# Tokenizers on their own, to be compared with the tokenizers library (tests/test_tokenizers.py).
add_executable(headlab_tokenizers tests/tokenizers.cpp)
headlab_torch_target(headlab_tokenizers)
target_link_libraries(headlab_tokenizers PRIVATE headlab_variants headlab_experiments)

# The whole program with a model of several sites (tests/test_sites.py) and a task with metrics of
# its own (tests/test_added_metric.py) in it.
if(main_source)
  add_executable(headlab_extended tests/translator.cpp tests/added_metric.cpp)
  headlab_torch_target(headlab_extended)
  target_link_libraries(headlab_extended PRIVATE headlab_main headlab_variants headlab_experiments)
endif()

# Spares tests most of each start of a program: it is preloaded (tests/warm_program.py,
# tests/started_program.h). A sanitizer must be what is loaded first, so there it is linked.
if(NOT HEADLAB_SANITIZE)
  add_library(headlab_warm_program MODULE tests/warm_program.cpp)
elseif(main_source)
  add_executable(headlab_warm_program tests/warm_program.cpp)
  target_link_libraries(headlab_warm_program PRIVATE headlab_main headlab_variants headlab_experiments)
endif()
if(TARGET headlab_warm_program)
  target_link_libraries(headlab_warm_program PRIVATE ${CMAKE_DL_LIBS})
endif()

# Cases tagged [.slow] are run by scripts/test --slow. The sanitizers leave out trainings to the end
# or at the size of configs/, too: they take minutes there, and go through the code that the small
# ones go through.
set(left_out "~[.]")
set(limit 600)  # seconds of an entry
set(most_files 4)  # of one entry
if(HEADLAB_SANITIZE)
  string(APPEND left_out "~[whole_training]")
  set(limit 1800)
  set(most_files 1)  # .ci/run asks for them by name
endif()

# With torch a program takes a quarter of a second to start, sanitized one and a half: so one ctest is
# not a test case but all of a few files of one folder, whose names make its own. scripts/test counts
# the cases by what the programs print.
function(headlab_test_files name)
  set(folder "")
  set(stems "")
  list(APPEND ${name} "end")
  foreach(source IN LISTS ${name})
    cmake_path(GET source PARENT_PATH parent)
    cmake_path(GET source STEM stem)
    list(LENGTH stems files)
    if(files AND (files EQUAL most_files OR NOT parent STREQUAL folder))
      list(TRANSFORM stems REPLACE "(.+)" "[#\\1]${left_out}${${name}_spec}" OUTPUT_VARIABLE spec)
      list(JOIN spec "," spec)
      list(JOIN stems "," joined)
      add_test(NAME ${name}:${joined} COMMAND ${name} --filenames-as-tags --min-duration 1 ${spec})
      set_tests_properties(${name}:${joined} PROPERTIES
        ENVIRONMENT OMP_NUM_THREADS=1 TIMEOUT ${limit})
      set(stems "")
    endif()
    set(folder "${parent}")
    if(stem MATCHES "^test_")  # else what tests are about, without a test of its own
      list(APPEND stems ${stem})
    endif()
  endforeach()
endfunction()

# headlab_test(name libraries...): a program of the sources in the list `name`, when it has any, and
# of its test cases those that `name_spec`, tags, selects (all when unset).
function(headlab_test name)
  if(NOT ${name})
    return()
  endif()
  headlab_units(units ${name} ${${name}})
  headlab_less_optimised(${units})
  add_executable(${name} ${units})
  target_link_libraries(${name} PRIVATE headlab_test_main headlab_logs Catch2::Catch2 ${ARGN})
  if("headlab_core" IN_LIST ARGN)
    target_link_libraries(${name} PRIVATE headlab_torch_errors)
    headlab_torch_target(${name})
    headlab_test_files(${name})
    return()
  endif()
  if(name STREQUAL "test_command_line")  # each file loads the libraries of the program once
    set(most_files 1)
    headlab_test_files(${name})
    return()
  endif()
  catch_discover_tests(${name} TEST_SPEC ${left_out} TEST_PREFIX "${name}:"
    PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1 TIMEOUT ${limit})
endfunction()

add_library(headlab_test_main OBJECT tests/main.cpp)
headlab_less_optimised(${CMAKE_SOURCE_DIR}/tests/main.cpp)
target_link_libraries(headlab_test_main PUBLIC headlab_files Catch2::Catch2)

# Errors of torch without the frames behind them: what a law says must not be looked for.
add_library(headlab_torch_errors OBJECT tests/torch_errors.cpp)
headlab_torch_target(headlab_torch_errors)
target_link_libraries(headlab_torch_errors PUBLIC Catch2::Catch2)

# What every kind must obey, compiled once for two programs: of our kinds (`scripts/test --kind` runs
# it for one of them), and of the examples.
headlab_units(law_units headlab_laws ${laws})
add_library(headlab_laws OBJECT ${law_units})
headlab_torch_target(headlab_laws)
headlab_less_optimised(${law_units})
target_link_libraries(headlab_laws PUBLIC headlab_core headlab_logs Catch2::Catch2)

headlab_test(test_plain)
headlab_test(test_heads headlab_variants headlab_experiments headlab_core headlab_hand_built)
headlab_test(test_experiments headlab_variants headlab_experiments headlab_core headlab_hand_built)
headlab_test(test_command_line)

add_executable(test_laws)
set_target_properties(test_laws PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(test_laws PRIVATE headlab_laws headlab_test_main headlab_torch_errors headlab_variants
                      headlab_experiments headlab_core)
set(test_laws ${laws})
headlab_test_files(test_laws)

# The examples of README and docs/own_kind.md, and made-up kinds that ask of the contract what ours do
# not (no map of weights, groups of their own, a layer around other kinds, keys that are fewer than
# tokens, blocks chosen by content, values of an earlier layer), obey the laws of all kinds, in a
# program without ours.
set(examples tests/example_head.cpp tests/own_kind_head.cpp tests/own_map.cpp
    tests/recurrent_head.cpp tests/latent_head.cpp tests/scaled_head.cpp
    tests/chosen_blocks_head.cpp tests/pooled_head.cpp tests/first_values_head.cpp)
list(TRANSFORM examples PREPEND ${CMAKE_SOURCE_DIR}/)
headlab_units(example_units headlab_examples ${examples})
add_library(headlab_examples OBJECT ${example_units})
headlab_torch_target(headlab_examples)
headlab_less_optimised(${example_units})
target_link_libraries(headlab_examples PUBLIC headlab_core)
set(test_example ${example_test})
headlab_test(test_example headlab_examples headlab_laws headlab_experiments headlab_core)
set(test_example ${laws})
list(REMOVE_ITEM test_example ${gpu_laws})  # where there is a GPU, our kinds meet it
set(test_example_spec "~[variants]")
headlab_test_files(test_example)

# Kinds that leak on purpose, and one that reads what an earlier layer offers, in models: in a program
# of their own, for no test that goes over all kinds must meet them.
set(test_made_up ${leak_test} ${link_test} ${CMAKE_SOURCE_DIR}/tests/translator.cpp
    ${CMAKE_SOURCE_DIR}/tests/first_values_head.cpp)
headlab_test(test_made_up headlab_variants headlab_experiments headlab_core)

if(TARGET test_command_line AND TARGET headlab)
  add_dependencies(test_command_line headlab headlab_warm_program headlab_write_hand_built)
endif()

# Writes a log for the notebooks' reader to be tested on (tests/test_log_reading.py).
file(GLOB write_log CONFIGURE_DEPENDS tests/write_log.cpp)
if(write_log)
  add_executable(headlab_write_log ${write_log})
  target_link_libraries(headlab_write_log PRIVATE headlab_logs)
endif()
