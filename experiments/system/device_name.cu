#include <cuda_runtime.h>

#include "experiments/system/device_name.h"

namespace headlab {

std::string cuda_device_name(int index) {
  cudaDeviceProp properties;
  return cudaGetDeviceProperties(&properties, index) == cudaSuccess ? properties.name : "";
}

}  // namespace headlab
