// What the machine reaches with this process's threads: matrix products and copies.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace headlab {

struct MachineSpeed {
  double flops = 0;   // FLOP/s of the product of two square matrices
  int64_t sizes = 0;  // their rows and columns
  bool bf16 = false;  // their type; else float32
  double bytes = 0;   // read and written in a second by a large copy
};

// The fastest product of matrices of 512 and more, of which the largest takes some `seconds`. On a
// CPU it is at::mm or the library that headlab's layers take (core/attention/layers.h). With bf16
// the faster of both types: layers make their scores in float32 there, too.
// DeviceError where there is no memory for the copy.
MachineSpeed measure_machine(const c10::Device& device, bool bf16, double seconds);

}  // namespace headlab
