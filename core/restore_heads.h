// Tensors by name, as modules have and files keep them; and layers of heads that come back from
// them.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

namespace torch::nn {
class Module;
}

namespace headlab {

class AttentionHeads;
class KindBlock;
struct HeadShape;

using NamedTensors = std::map<std::string, at::Tensor>;

// All parameters and buffers by name, sharing the module's memory.
NamedTensors module_tensors(const torch::nn::Module& module);

// Copies tensors into the parameters and buffers of the same names, in place. Shapes and dtypes
// must match, except that a float64 module takes float32. Names of the module are those of the
// tensors behind `path`. RunError lists everything that does not fit; then nothing is copied.
void load_into(torch::nn::Module& module, const NamedTensors& tensors,
               const std::string& path = "");

// The layer of this kind and shape that saved `tensors`, those whose names begin with `path`: built
// whole, sliced to the heads of `head_ids` where that is among them, and loaded; in the widest of
// their types. ConfigError as make_heads(); RunError as load_into(), by the whole names.
std::shared_ptr<AttentionHeads> restore_heads(const KindBlock& block, const HeadShape& shape,
                                              const NamedTensors& tensors,
                                              const std::string& path = "");

}  // namespace headlab
