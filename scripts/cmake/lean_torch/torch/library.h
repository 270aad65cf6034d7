// In the place of torch's own, which torch/types.h includes for the registration of operators:
// it brings the dispatcher's templates along. Who registers one (scripts/python/headlab/watch.cpp)
// says so.
#pragma once
#ifdef HEADLAB_REGISTERS_OPERATORS
#include_next <torch/library.h>
#endif
