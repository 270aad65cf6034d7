// Who chooses the instruction set of the CPU's kernels: the environment, or a test.
#pragma once

#include <string>
#include <vector>

#include "core/kernels/isa.h"

namespace headlab {

// The environment variable that chooses one; unset or empty: the best that this machine has.
inline constexpr const char* kIsaVariable = "HEADLAB_ISA";

const char* isa_name(Isa isa);       // as the variable names it: avx512, avx2, default
std::vector<Isa> all_isas();         // the best first
std::vector<Isa> isas_of_machine();  // those that kernels are built for and this processor has
// What is wrong with the variable's value; "": nothing.
std::string isa_problem(const char* value);
// Another one from now on, in all threads, for tests and measurements: one of this machine's.
void set_kernel_isa(Isa isa);

}  // namespace headlab
