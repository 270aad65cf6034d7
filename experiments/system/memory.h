// How much memory there is, asked before much of it is taken: Linux grants what is not there, and
// kills the process that uses it.
#pragma once

#include <string>

namespace headlab {

// "1.5 GiB"
std::string readable_bytes(double bytes);

// Bytes that this process may still take of the machine, or of what its control groups (a
// container, a job of a scheduler) leave it. Infinite where the system does not say.
double available_memory();

// DeviceError where `bytes` are not there for `what`, e.g. "the weights of 12 layers".
void require_memory(double bytes, const std::string& what);

}  // namespace headlab
