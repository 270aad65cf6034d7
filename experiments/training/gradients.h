// The gradients of an update: .grad of all parameters are views of one buffer, so that they are
// zeroed, divided and summed over the ranks of a run at once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "experiments/ranks/comm.h"

namespace headlab {

class Gradients {
 public:
  // Of leaves of one device that need a gradient, each once. They have no .grad outside of begin()
  // and the end of their optimiser's step.
  explicit Gradients(const std::vector<Tensor>& parameters);
  ~Gradients();
  Gradients(const Gradients&) = delete;
  Gradients& operator=(const Gradients&) = delete;

  void begin();          // an update: all are 0, and no parameter has had one
  void zero();           // all are 0; which parameters have had one stays
  void sum(Comm& comm);  // over all ranks
  void divide(const Tensor& by);
  // Ends an update: where no pass has reached a parameter, it has no .grad. `reached`: which of
  // them, of all ranks.
  void end(const std::vector<bool>& reached);
  std::vector<bool> reached() const;  // by the passes of this rank

 private:
  struct Slot {
    Tensor parameter, view;
    unsigned hook = 0;
  };
  std::vector<Tensor> buffers_;  // flat, one a type of numbers
  std::vector<Slot> slots_;
  // That hooks tell of a backward pass: views of one buffer share what counts their changes.
  std::shared_ptr<std::vector<uint8_t>> reached_;
};

}  // namespace headlab
