// What makes one key and one value of a block of tokens: phi of native sparse attention.
//
// B batch, Hkv heads, d their width, l tokens a compressed block, one every s tokens, f hidden
// features.
#pragma once

#include "core/heads.h"

namespace headlab {

struct CompressionShape {
  std::string kind;                            // mean, weighted, linear, mlp
  int64_t heads = 0, width = 0;                // Hkv, d
  int64_t tokens = 1, stride = 1, hidden = 0;  // l, s, f
  bool positions = false;                      // learned, added to the tokens of a block
};

// Parameters under the names of the cases: k, v [Hkv,l] (weighted) or [Hkv,l d,d] (linear),
// k_up [f,l d], k_down [d,f] and likewise v (mlp), k_positions and, of mlp, v_positions [Hkv,l,d].
class CompressionImpl : public torch::nn::Module {
 public:
  explicit CompressionImpl(const CompressionShape& shape);

  // Of tokens [B,Hkv,n,d] the `count` blocks that begin at `first`, first + s, ...:
  // [B,Hkv,count,d].
  Tensor keys(const Tensor& tokens, int64_t first, int64_t count) {
    return compressed(k_, tokens, first, count);
  }
  Tensor values(const Tensor& tokens, int64_t first, int64_t count) {
    return compressed(v_, tokens, first, count);
  }
  // Names of the parameters that have entries by key/value head, and of the others.
  std::vector<std::string> by_head() const;
  std::vector<std::string> shared() const;
  double flops() const;  // of one block, its key and its value

 private:
  struct Half {
    Tensor weight, positions;
    Linear up{nullptr}, down{nullptr};
  };
  Half make_half(const std::string& name, bool positions);
  Tensor compressed(Half& half, const Tensor& tokens, int64_t first, int64_t count);

  CompressionShape shape_;
  Half k_, v_;
};
TORCH_MODULE(Compression);

}  // namespace headlab
