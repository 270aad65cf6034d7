// Torch's own torch/library.h, for the one source that registers an operator
// (scripts/python/headlab/watch.cpp).
#pragma once
#include_next <torch/library.h>
