# The libraries that headlab builds on beside LibTorch, wherever they are: in the system, in
# CMAKE_PREFIX_PATH, in an active conda environment, or unpacked by `scripts/setup --local`. What is
# not found is in headlab_missing, by the names of scripts/setup, which asks for it by
# scripts/cmake/ask.
get_filename_component(_root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
set(_unpacked "${_root}/.deps/system/usr")
if(EXISTS "${_unpacked}")
  list(PREPEND CMAKE_PREFIX_PATH "${_unpacked}")
  # Unlike a system's own, these folders are searched by neither compiler nor loader: headers of one
  # architecture, and libraries that libraries need.
  set(_libraries "${_unpacked}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
  add_compile_options("-idirafter${_unpacked}/include/${CMAKE_LIBRARY_ARCHITECTURE}")
  list(APPEND CMAKE_BUILD_RPATH "${_libraries}")
  add_link_options(-Wl,--disable-new-dtags "-Wl,-rpath-link,${_libraries}")
endif()
if(DEFINED ENV{CONDA_PREFIX})
  list(APPEND CMAKE_PREFIX_PATH "$ENV{CONDA_PREFIX}")
endif()

set(headlab_missing)
macro(headlab_package name)
  find_package(${name} QUIET ${ARGN})
  if(NOT ${name}_FOUND)
    list(APPEND headlab_missing ${name})
  endif()
endmacro()
foreach(_name yaml-cpp fmt CLI11 nlohmann_json ZLIB Catch2)
  headlab_package(${_name})
endforeach()
headlab_package(OpenSSL COMPONENTS Crypto)

# headlab_library(NAME header HEADER libraries LIBRARY...): each LIBRARY is names between commas.
# Debian's pkg-config files and compiler wrappers name /usr, wherever they are unpacked.
function(headlab_library name header)
  find_path(${name}_INCLUDE_DIR ${header} HINTS ENV ${name}_ROOT ENV ${name}_DIR
            PATH_SUFFIXES include include/hdf5/serial hdf5/serial)
  set(found ${${name}_INCLUDE_DIR})
  set(libraries)
  foreach(names IN LISTS ARGN)
    string(REPLACE "," ";" names "${names}")
    list(GET names 0 first)
    find_library(${name}_${first} NAMES ${names} HINTS ENV ${name}_ROOT ENV ${name}_DIR
                 PATH_SUFFIXES lib lib64 hdf5/serial)
    list(APPEND libraries ${${name}_${first}})
    if(NOT ${name}_${first})
      set(found NO)
    endif()
  endforeach()
  set(${name}_LIBRARIES ${libraries} PARENT_SCOPE)
  if(NOT found)
    set(headlab_missing ${headlab_missing} ${name} PARENT_SCOPE)
  endif()
endfunction()
headlab_library(HDF5 hdf5.h hdf5_serial,hdf5 hdf5_serial_hl,hdf5_hl)
headlab_library(utf8proc utf8proc.h utf8proc)
