// What a GPU calls itself. Compiled with HEADLAB_CUDA alone.
#pragma once

#include <string>

namespace headlab {

std::string cuda_device_name(int index);  // "NVIDIA H100 80GB HBM3"; empty where there is none

}  // namespace headlab
