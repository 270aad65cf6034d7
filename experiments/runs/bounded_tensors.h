// Tensors that are refused where there is no memory for them.
#pragma once

namespace headlab {

// From now on a large tensor on the CPU that does not fit into memory throws DeviceError, before
// anything is allocated.
void bound_tensors();

}  // namespace headlab
