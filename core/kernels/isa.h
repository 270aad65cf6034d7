// Which instruction set the kernels of the CPU run with: each `.isa.cpp` file is compiled once for
// every one of them, and the file beside it picks a function at each call. No std containers: those
// files include this one.
#pragma once

namespace headlab {

enum class Isa { kDefault, kAvx2, kAvx512 };

// What kernels run with in this process (core/kernels/isa_choice.h). Chosen at the first call;
// std::invalid_argument where the environment variable is wrong.
Isa kernel_isa();

// The kernels of a file for one instruction set, of both types.
template <template <class> class Kernels>
struct OfTypes {
  Kernels<float> f32;
  Kernels<double> f64;
};
inline auto of_type(const auto& kernels, float) { return kernels.f32; }
inline auto of_type(const auto& kernels, double) { return kernels.f64; }

// HEADLAB_OF_ISA(make): what make() of the chosen instruction set's namespace gives.
#ifdef __x86_64__
#define HEADLAB_EACH_ISA(declare) declare(DEFAULT) declare(AVX2) declare(AVX512)
#define HEADLAB_OF_ISA(make)                     \
  (kernel_isa() == Isa::kAvx512 ? AVX512::make() \
   : kernel_isa() == Isa::kAvx2 ? AVX2::make()   \
                                : DEFAULT::make())
#else
#define HEADLAB_EACH_ISA(declare) declare(DEFAULT)
#define HEADLAB_OF_ISA(make) (kernel_isa(), DEFAULT::make())
#endif

}  // namespace headlab
