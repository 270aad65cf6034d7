// Picks the instruction set of attention through composed maps.
#include "core/kernels/compose_rows.h"

#include "core/kernels/isa.h"

namespace headlab {

#define HEADLAB_DECLARE(isa)                 \
  namespace isa {                            \
  OfTypes<ComposeKernels> compose_kernels(); \
  }
HEADLAB_EACH_ISA(HEADLAB_DECLARE)
#undef HEADLAB_DECLARE

template <class T>
const ComposeKernels<T>& compose_kernels() {
  return of_type(HEADLAB_OF_ISA(compose_kernels), T());
}
template const ComposeKernels<float>& compose_kernels<float>();
template const ComposeKernels<double>& compose_kernels<double>();

}  // namespace headlab
