// Weights that are NaN or infinite: who opens some names them, once and early.
#pragma once

#include <stdexcept>
#include <string>

#include "experiments/models/named_tensors.h"

namespace headlab {

// A model computes what is not finite, so that there is nothing to measure.
class NotFiniteError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// How many of the tensors hold NaN or infinity, and the first of them by name; "" where none does.
// One pass over finite tensors.
std::string not_finite(const NamedTensors& tensors);

// The same on stderr, of the weights of `owner`: a run, or a file.
void warn_if_not_finite(const std::string& owner, const NamedTensors& tensors);

}  // namespace headlab
