// Types of numbers in files, as torch has them.
#pragma once

#include <c10/core/ScalarType.h>

#include <array>

#include "experiments/files/safetensors.h"

namespace headlab {

// By Dtype.
inline constexpr std::array<at::ScalarType, 13> kScalarTypes{
    at::kBool, at::kByte,   at::kChar,  at::kShort, at::kUInt16, at::kHalf,  at::kBFloat16,
    at::kInt,  at::kUInt32, at::kFloat, at::kLong,  at::kUInt64, at::kDouble};

constexpr at::ScalarType scalar_type_of(Dtype dtype) {
  return kScalarTypes[static_cast<size_t>(dtype)];
}

}  // namespace headlab
