// Dropout of attention weights by a hash of the counter: (b, h, i, j) is kept or not, whatever path
// or device computes it, and a kernel finds it again on the way back.
#pragma once

#include "core/attention/random.h"
#include "core/kernels/attention_rows.h"

namespace headlab {

// Which weights a pass keeps at rate p, in [0, 1).
Dropout weight_dropout(double p, const CounterRng& rng);
// What it leaves of weights a [B,H,T,S].
Tensor dropout(const Tensor& a, const Dropout& dropout);

// Bool of such sizes on a device: those that are kept, by operations of torch. For devices other
// than a CPU, and for tests.
Tensor kept_by_operations(at::IntArrayRef sizes, const Dropout& dropout, const at::Device& device);

}  // namespace headlab
