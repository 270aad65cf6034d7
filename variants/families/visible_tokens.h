// The inputs of heads that keep a state: the tokens that no mask hides, in their order, through a
// short convolution.
//
// B batch, n heads, T tokens of this pass, d width of a head, w taps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace headlab {

using at::Tensor;
struct HeadCall;

// Hidden tokens are taken out of a recurrence and the rest closes up: no state decays there, and no
// convolution sees them.
class VisibleTokens {
 public:
  // Of the T tokens of x [B,T,D], by the lengths and the mask of keys of the call.
  VisibleTokens(const Tensor& x, const HeadCall& call);

  // [B,n,T,.] in the order of x -> the visible tokens of each example first, then zeros.
  Tensor close_up(const Tensor& t) const;
  // Closed up -> the same with 0 behind the visible tokens; and in the order of x, 0 where a token
  // is hidden.
  Tensor hide(const Tensor& t) const;
  Tensor put_back(const Tensor& t) const;
  // t [B,n,before+T,.] ends in the tokens, closed up: its `before` last entries without the hidden
  // ones [B,n,before,.].
  Tensor last(const Tensor& t, int64_t before) const;

  // bool [B,T] in the order of x: neither hidden nor beyond its query length.
  Tensor counted(const HeadCall& call) const;

 private:
  Tensor gather(const Tensor& t, const Tensor& places) const;

  Tensor visible_;           // bool [B,T]; undefined: all are, and so are the others
  Tensor order_, rank_;      // [B,T] int64: the token at each place, the place of each token
  Tensor beyond_, numbers_;  // bool [B,1,T,1]: a hidden token's place; [B] how many are visible
};

// silu(p' + bias) of the visible tokens, closed up, where
//   p'_t[c] = sum_{j<w} weight[c,j] p_{t-(w-1)+j}[c],   zeros before the first token.
// p [B,n,T,d] in the order of x, weight [n*d,w] (undefined: p' = p), bias [n*d] or undefined
// -> [B,n,T,d], float32 or wider. `taps` (null: nothing is kept) holds the last w-1 inputs of
// earlier passes [B,n,w-1,d], and takes those of this one.
Tensor short_convolution(const Tensor& p, const Tensor& weight, const Tensor& bias,
                         const VisibleTokens& tokens, Tensor* taps);

}  // namespace headlab
