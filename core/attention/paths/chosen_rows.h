// Rows that heads choose: each head serves some of the tokens, and nothing is computed for the
// others.
//
// B batch, T queries, H heads that choose, D d_model, d width of a head. The N chosen rows of all
// heads are packed [N,.]: head after head, there example after example, queries ascending.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace headlab {

using at::Tensor;

struct ChosenRows {
  int64_t B, H, T;
  Tensor head, token, query;    // [N] int64: which head; b T + t; t
  std::vector<int64_t> starts;  // [H B + 1] where the rows of (h, b) start, and their end

  explicit ChosenRows(const Tensor& chosen);  // bool [B,H,T]

  int64_t size() const { return starts.back(); }
  // Those of head h alone, of what is packed.
  Tensor of_head(const Tensor& packed, int64_t h) const;
  // x [B,H,T,d] -> [N,d]; and back, with 0 in rows that are not chosen.
  Tensor pack(const Tensor& x) const;
  Tensor unpack(const Tensor& packed) const;
};

// Of each row the token's features through the head's weight: x [B,T,D], weight [H,d,D], bias [H,d]
// or undefined -> [N,d].
Tensor project_rows(const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const ChosenRows& rows);
// The other way, summed over the heads that chose a token: packed [N,d], weight [H,d,D] -> [B,T,D].
Tensor sum_rows(const Tensor& packed, const Tensor& weight, const ChosenRows& rows);

}  // namespace headlab
