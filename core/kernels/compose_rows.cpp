// Picks the instruction set of attention through composed maps once, at the first use.
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
  static const auto best = HEADLAB_BEST(compose_kernels)();
  return of_type(best, T());
}
template const ComposeKernels<float>& compose_kernels<float>();
template const ComposeKernels<double>& compose_kernels<double>();

}  // namespace headlab
