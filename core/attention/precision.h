// In which type sums are made, and whether their numbers are any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>

namespace headlab {

using at::Tensor;

// While it lives autocast makes no product of half types: of scores, and of maps that are mixed.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

// What sums of t are made in: float64 for float64, else float32.
at::ScalarType at_least_float(const Tensor& t);

// Whether products of t are of a half type: because t is, or by autocast.
bool rounds(const Tensor& t);

// Calls `read` with stretches of n numbers that together are t; false, and nothing was called,
// where t is not a small tensor of float32 on the CPU. An operation of torch takes as long as
// reading thousands of numbers, which is felt where one token is decoded.
bool read_small(const Tensor& t, c10::function_ref<void(const float* numbers, int64_t n)> read);

// False where an entry of a tensor is NaN or infinite, or the sum of all overflows.
bool sums_are_finite(const Tensor& t);

// What LAPACK makes of matrices [..,m,n], and NaN of those that hold NaN or infinity: of such it
// may not return, or crash.
Tensor of_finite(const Tensor& matrices, const std::function<Tensor(const Tensor&)>& decompose);

}  // namespace headlab
