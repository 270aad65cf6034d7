// Tests whose numbers come from kernels that exist once for each instruction set of the CPU.
#pragma once

#include "core/kernels/isa_choice.h"
#include "tests/catch.h"

namespace headlab::testing {

// Kernels run with this instruction set until the end of the scope.
class WithIsa {
 public:
  explicit WithIsa(Isa isa) : before_(kernel_isa()) { set_kernel_isa(isa); }
  ~WithIsa() { set_kernel_isa(before_); }
  WithIsa(const WithIsa&) = delete;
  WithIsa& operator=(const WithIsa&) = delete;

 private:
  Isa before_;
};

// First in a test case, which then runs once with each instruction set of this machine.
#define HEADLAB_WITH_EVERY_ISA                                                      \
  const auto isa_of_this_pass = GENERATE(from_range(::headlab::isas_of_machine())); \
  const ::headlab::testing::WithIsa with_isa_of_this_pass(isa_of_this_pass);        \
  INFO("with HEADLAB_ISA=" << ::headlab::isa_name(isa_of_this_pass))

}  // namespace headlab::testing
