# headlab._C: core, all kinds and whole models in one extension of Python, and nothing that reads or
# writes logs. What it has beside torch stands inside and is seen by nobody else: another extension
# in the process may have yaml-cpp or fmt of another version.
execute_process(
  COMMAND ${HEADLAB_PYTHON} -I -c "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), sep=';')"
  OUTPUT_VARIABLE _python OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET _python 0 _python_include)
list(GET _python 1 _python_suffix)
if(NOT EXISTS ${_python_include}/Python.h)
  message(FATAL_ERROR "${_python_include}/Python.h is missing: install python3-dev")
endif()

# The few plain sources that models ask for; the libraries that hold them link HDF5 and OpenSSL.
set(_plain
  files/config_file files/field_table files/file_stamp files/json_place files/json_text
  files/mapped_file files/regular_file files/replacement_file files/safetensors system/memory
  system/output system/signals text/unicode_tables text/utf8 text/visible_text)
list(TRANSFORM _plain REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/experiments/\\1.cpp")

# What headlab.replace begins with, and the layout of transformers.
set(_conversion
  conversion/convert conversion/parafac conversion/head_alignment files/gguf files/new_folder
  pretrained/export pretrained/foreign_weights pretrained/gguf_model pretrained/hugging_face
  pretrained/hugging_face_defaults pretrained/hugging_face_families
  pretrained/hugging_face_settings pretrained/plain_heads pretrained/published_config
  pretrained/published_names pretrained/weight_files)
list(TRANSFORM _conversion REPLACE "(.+)" "${CMAKE_SOURCE_DIR}/experiments/\\1.cpp")
file(GLOB _binding CONFIGURE_DEPENDS scripts/python/headlab/*.cpp)
add_library(headlab_python MODULE ${_binding} ${_conversion} ${_plain})
set_target_properties(headlab_python PROPERTIES
  OUTPUT_NAME _C PREFIX "" SUFFIX ${_python_suffix}
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/headlab)
target_include_directories(headlab_python SYSTEM PRIVATE ${_python_include})
target_compile_definitions(headlab_python PRIVATE TORCH_EXTENSION_NAME=_C TORCH_API_INCLUDE_EXTENSION_H)
target_link_libraries(headlab_python PRIVATE
  headlab_variants headlab_models headlab_core torch_whole ${_torch}/lib/libtorch_python.so)

# headlab_inside(NAME LIBRARY.a): headlab._C holds the library itself where there is an archive of it
# that a shared library can be made of (Debian's of yaml-cpp cannot), else it links the shared one.
function(headlab_inside name library)
  find_library(HEADLAB_ARCHIVE_${name} ${library})
  set(archive ${HEADLAB_ARCHIVE_${name}})
  if(archive AND NOT DEFINED HEADLAB_FITS_${archive})
    execute_process(
      COMMAND ${CMAKE_CXX_COMPILER} -shared -o ${CMAKE_BINARY_DIR}/CMakeFiles/fits.so
              -Wl,--whole-archive ${archive} -Wl,--no-whole-archive
      RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
    set(fits YES)
    if(failed)
      set(fits NO)
    endif()
    set(HEADLAB_FITS_${archive} ${fits} CACHE INTERNAL "a shared library can be made of it")
  endif()
  if(archive AND HEADLAB_FITS_${archive})
    set_target_properties(headlab_python PROPERTIES HEADLAB_INSIDE_${name} ${archive})
  endif()
endfunction()
headlab_inside(YAML libyaml-cpp.a)
headlab_inside(UTF8PROC libutf8proc.a)

# fmt, compiled into it where this version of fmt allows it.
get_target_property(_fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
if(NOT DEFINED HEADLAB_FMT_INSIDE)
  file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/uses_fmt.cpp
       "#include <fmt/format.h>\nint main() { return fmt::format(\"{:.2f}\", 1.).size() != 4; }\n")
  try_compile(HEADLAB_FMT_INSIDE ${CMAKE_BINARY_DIR}/CMakeFiles/fmt_inside
              SOURCES ${CMAKE_BINARY_DIR}/CMakeFiles/uses_fmt.cpp
                      ${CMAKE_SOURCE_DIR}/scripts/cmake/fmt_inside.cpp
              CXX_STANDARD 20 CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${_fmt_headers}")
endif()
if(HEADLAB_FMT_INSIDE)
  target_sources(headlab_python PRIVATE ${CMAKE_SOURCE_DIR}/scripts/cmake/fmt_inside.cpp)
  add_library(headlab_fmt_headers INTERFACE)
  target_include_directories(headlab_fmt_headers SYSTEM INTERFACE ${_fmt_headers})
  set_target_properties(headlab_python PROPERTIES HEADLAB_INSIDE_FMT headlab_fmt_headers)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/python_symbols "{ global: PyInit__C; local: *; };\n")
target_link_options(headlab_python PRIVATE "-Wl,--version-script,${CMAKE_BINARY_DIR}/python_symbols")
