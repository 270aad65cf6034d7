// What the HDF5 wrapper's own files share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "experiments/files/h5.h"

namespace headlab {

struct H5FileState {
  std::filesystem::path path;
  H5Handle file;
  bool frozen = false;  // SWMR writing has started
};

inline constexpr unsigned kCreationOrder = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;

// Throws RunError "where: what: HDF5's innermost message".
[[noreturn]] void fail_at(const std::string& where, const std::string& what);

hid_t native_type(H5Type type);  // in memory; not for kText
hid_t stored_type(H5Type type);  // in the file; not for kText
H5Handle text_type();            // variable-length UTF-8, in both
std::vector<const char*> c_strings(const std::string& where, std::span<const std::string> texts);

}  // namespace headlab
