// Which instruction set the kernels compiled once for each of them run with.
#pragma once

#ifdef __x86_64__
#define HEADLAB_EACH_ISA(declare) declare(DEFAULT) declare(AVX2) declare(AVX512)
#define HEADLAB_BEST(function)                                                        \
  (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&         \
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")   \
       ? AVX512::function                                                             \
   : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? AVX2::function \
                                                                     : DEFAULT::function)
#else
#define HEADLAB_EACH_ISA(declare) declare(DEFAULT)
#define HEADLAB_BEST(function) DEFAULT::function
#endif

namespace headlab {

// The kernels of a file for one instruction set, of both types.
template <template <class> class Kernels>
struct OfTypes {
  Kernels<float> f32;
  Kernels<double> f64;
};
inline const auto& of_type(const auto& kernels, float) { return kernels.f32; }
inline const auto& of_type(const auto& kernels, double) { return kernels.f64; }

}  // namespace headlab
