// Named tensors and the safetensors files that hold them.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

#include "core/restore_heads.h"

namespace headlab {

// Takes a tensor out; undefined where there is none of that name.
at::Tensor take(NamedTensors& tensors, const std::string& name);

// Every tensor of a safetensors file, copied to the CPU, and its metadata where asked for.
// Throws DataError when the file is missing or wrong.
NamedTensors read_tensors(const std::filesystem::path& path,
                          std::map<std::string, std::string>* metadata = nullptr);

// Writes dense tensors of any device, layout and sharing, of the dtypes that safetensors has.
// Throws RunError where the storage refuses, c10::Error for a tensor that cannot be written.
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata = {});

}  // namespace headlab
