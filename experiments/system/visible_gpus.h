// The GPUs of this process by the names that CUDA_VISIBLE_DEVICES takes. No torch in here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headlab {

// `count`: how many the process sees. `given`: what CUDA_VISIBLE_DEVICES holds, numbers or UUIDs
// with commas; "": it is not set, and they have the numbers from 0.
std::vector<std::string> visible_gpus(int64_t count, std::string_view given);

}  // namespace headlab
