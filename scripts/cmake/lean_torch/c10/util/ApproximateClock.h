// Torch's own without <x86intrin.h>, two megabytes of intrinsics, of which it calls one.
#pragma once

#if defined(__x86_64__) && !defined(_X86INTRIN_H_INCLUDED) && !defined(__X86INTRIN_H)
#define _X86INTRIN_H_INCLUDED  // g++'s guard
#define __X86INTRIN_H          // clang's
#define __rdtsc() __builtin_ia32_rdtsc()
#include_next <c10/util/ApproximateClock.h>
#undef __rdtsc
#undef __X86INTRIN_H
#undef _X86INTRIN_H_INCLUDED
#else
#include_next <c10/util/ApproximateClock.h>
#endif
