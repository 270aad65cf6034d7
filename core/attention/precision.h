// In which type sums are made, and whether their numbers are any.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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

// False where an entry of a tensor is NaN or infinite, or the sum of all overflows.
bool sums_are_finite(const Tensor& t);

// Whether every entry is greater than `bound`; NaN is not.
bool all_above(const Tensor& t, double bound);

// What LAPACK makes of matrices [..,m,n], and NaN of those that hold NaN or infinity: of such it
// may not return, or crash.
Tensor of_finite(const Tensor& matrices, const std::function<Tensor(const Tensor&)>& decompose);

}  // namespace headlab
