# Refuses a compiler whose programs hold a libstdc++ of their own. LibTorch loads the shared one:
# with two copies in a process, one frees what the other made, and the program dies in free().
# -static-libstdc++ asks for it, and a g++ that lacks its libstdc++.so falls back to it in silence.
set(_loads_shared "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/loads_shared")
file(WRITE ${_loads_shared}.cpp [[
#include <link.h>

#include <cstring>
#include <stdexcept>

int is_shared(dl_phdr_info* library, size_t, void*) {
  return std::strstr(library->dlpi_name, "libstdc++.so") != nullptr;
}
int main() {
  try {
    throw std::runtime_error("links the library");
  } catch (const std::exception&) {
    return dl_iterate_phdr(is_shared, nullptr) == 1 ? 0 : 1;
  }
}
]])

# `role` says in the message what the compiler is used for; ARGN are its flags.
function(headlab_require_shared_libstdcxx compiler role)
  string(SHA1 key "${compiler} ${ARGN}")
  if(HEADLAB_LOADS_SHARED_${key})
    return()
  endif()
  execute_process(COMMAND ${compiler} ${ARGN} ${_loads_shared}.cpp -o ${_loads_shared}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR "${compiler} (${role}) cannot link a program of one file:\n${said}")
  endif()
  execute_process(COMMAND ${_loads_shared} RESULT_VARIABLE failed OUTPUT_VARIABLE said
                  ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR
      "${compiler} (${role}) makes programs that do not load the shared libstdc++.so${said}: they "
      "hold a copy of their own beside LibTorch's, and crash in free(). Remove -static-libstdc++ "
      "from the flags if it stands there; else take the system's compiler: delete "
      "${CMAKE_BINARY_DIR}, then set CXX=/usr/bin/g++ (for CUDA CUDAHOSTCXX=/usr/bin/g++, too) and "
      "build again")
  endif()
  set(HEADLAB_LOADS_SHARED_${key} ON CACHE INTERNAL "this compiler's programs load libstdc++.so")
endfunction()

separate_arguments(_flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_EXE_LINKER_FLAGS}")
headlab_require_shared_libstdcxx(${CMAKE_CXX_COMPILER} "the C++ compiler" ${_flags})
# The one that was asked for, else the one that CMake saw nvcc call.
set(_cuda_host "${CMAKE_CUDA_HOST_COMPILER}")
if(NOT _cuda_host)
  set(_cuda_host "${CMAKE_CUDA_HOST_LINK_LAUNCHER}")
endif()
if(_cuda_host)
  headlab_require_shared_libstdcxx(${_cuda_host} "the host compiler of CUDA")
endif()
