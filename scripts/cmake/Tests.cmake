# The test programs. Every tests/test_*.cpp lands in one of five; each test case becomes one ctest.
include(Catch)

set(plain_tests config config_files config_text config_writing log log_damage task_thread
    safetensors run_files h5 progress includes)
set(experiment_tests experiment judge models data synthetic training optimizer checkpoint)
# These drive the built program and link none of it.
set(command_tests command_analyze command_cases command_convert command_errors command_line
    command_model command_prune command_run)
set(example_tests example)

file(GLOB test_sources CONFIGURE_DEPENDS tests/test_*.cpp)
foreach(source IN LISTS test_sources)
  cmake_path(GET source STEM stem)
  string(REGEX REPLACE "^test_" "" subject "${stem}")
  if(subject IN_LIST plain_tests)
    list(APPEND test_plain ${source})
  elseif(subject IN_LIST experiment_tests)
    list(APPEND test_experiments ${source})
  elseif(subject IN_LIST command_tests)
    list(APPEND test_command_line ${source})
  elseif(subject IN_LIST example_tests)
    list(APPEND test_example ${source})
  else()
    list(APPEND test_heads ${source})
  endif()
endforeach()

# A name that Catch misreads finds no test, which Catch 2 counts as success unless told otherwise.
if(Catch2_VERSION VERSION_LESS 3)
  set(no_tests_fail --warn NoTests)
endif()

# What test programs share beside headers: a model whose weights are written by hand.
add_library(headlab_hand_built OBJECT tests/hand_built.cpp)
headlab_torch_target(headlab_hand_built)
target_link_libraries(headlab_hand_built PUBLIC headlab_core)
add_executable(headlab_write_hand_built tests/write_hand_built.cpp)
headlab_torch_target(headlab_write_hand_built)
target_link_libraries(headlab_write_hand_built PRIVATE
  headlab_hand_built headlab_variants headlab_experiments)

# headlab_test(name libraries...): a program of the sources in the list `name`, when it has any, and
# of its test cases those that `name_spec` selects (all when unset).
function(headlab_test name)
  if(NOT ${name})
    return()
  endif()
  headlab_units(units ${name} 8 ${${name}})
  headlab_less_optimised(${units})
  add_executable(${name} ${units})
  target_link_libraries(${name} PRIVATE headlab_test_main headlab_plain Catch2::Catch2 ${ARGN})
  if("headlab_core" IN_LIST ARGN)
    headlab_torch_target(${name})
  endif()
  catch_discover_tests(${name} TEST_SPEC ${${name}_spec} TEST_PREFIX "${name}:"
    EXTRA_ARGS ${no_tests_fail}
    PROPERTIES ENVIRONMENT OMP_NUM_THREADS=1 TIMEOUT 600)
endfunction()

add_library(headlab_test_main OBJECT tests/main.cpp)
target_link_libraries(headlab_test_main PUBLIC headlab_plain Catch2::Catch2)

headlab_test(test_plain)
headlab_test(test_heads headlab_variants headlab_experiments headlab_core headlab_hand_built)
if(NOT HEADLAB_SANITIZE)  # whole trainings are too slow there
  headlab_test(test_experiments headlab_variants headlab_experiments headlab_core
    headlab_hand_built)
  headlab_test(test_command_line)
endif()

# README's example of a kind obeys the laws of all kinds, alone in a program: it is not one of ours.
list(APPEND test_example ${CMAKE_SOURCE_DIR}/tests/example_head.cpp
     ${CMAKE_SOURCE_DIR}/tests/test_laws.cpp)
set(test_example_spec "~every file in variants*")
headlab_test(test_example headlab_experiments headlab_core)

if(TARGET test_command_line AND TARGET headlab)
  add_dependencies(test_command_line headlab headlab_write_hand_built)
endif()

# Writes a log for the notebooks' reader to be tested on (tests/test_log_reading.py).
file(GLOB write_log CONFIGURE_DEPENDS tests/write_log.cpp)
if(write_log)
  add_executable(headlab_write_log ${write_log})
  target_link_libraries(headlab_write_log PRIVATE headlab_plain)
endif()
