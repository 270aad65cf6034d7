// Composition of head maps by matrices that tokens make (Xiao et al., arXiv 2405.08553).
//
// B batch, T queries, S keys, H heads, R rank.
#pragma once

#include <vector>

#include "core/attention/composed/composition.h"

namespace headlab {

// M_ij = I + fixed + sum_r w1_i[r]^T w2_i[r] + diag(g_i) + the same with w1_j, w2_j, g_j of the
// key, [H,H], index [from, to]. What is undefined is 0; without any part, M is the identity.
struct TokenComposition {
  Tensor fixed = {};  // [H,H]
  // Rows w1, then rows w2, then g, or 2R rows without g.
  Tensor query = {}, key = {};  // [B,2R+1,T,H], [B,2R+1,S,H]

  // I and all parts but the key's: [1,1,H,H] or [B,T,H,H].
  Tensor matrix() const;
  Composition composition() const;
  // What is added to a [B,H,T,S] by: fixed, query's rows, query's gates, key's rows, key's gates.
  // Undefined where there is no such part.
  std::vector<Tensor> terms(const Tensor& a) const;
};

}  // namespace headlab
