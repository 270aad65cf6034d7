// The options of native sparse attention.
#pragma once

#include <optional>
#include <string>

#include "core/config/config.h"
#include "core/projected_heads.h"
#include "variants/families/chosen_blocks.h"
#include "variants/nsa/compression.h"

namespace headlab {

struct NsaOptions : MhaOptions, DerivedDefaults<HeadShape> {
  int64_t block = 64, compress_block = 32, stride = 16, selected = 16;
  int64_t first_blocks = 1, local_blocks = 2, window_tokens = 512;
  std::string compress = "mean", compress_rope = "tokens", branch_kv = "shared";
  std::optional<bool> compress_positions;
  std::optional<int64_t> compress_hidden;
  bool gate_bias = false;

  void visit(Fields& f) override;
  void derive(const HeadShape& shape) override;
  HeadTraits traits() const override;
  void check(const Complain& complain) const override;

  bool separate() const { return branch_kv == "separate"; }
  bool turns_blocks() const { return compress_rope == "blocks"; }
  bool positions() const { return compress_positions.value_or(compress != "mean"); }
  BlockRules rules() const { return {block, selected, first_blocks, local_blocks}; }
  CompressionShape compression(const HeadShape& s) const {
    return {compress,       s.kv_heads, s.head_dim,
            compress_block, stride,     compress_hidden.value_or(compress_block * s.head_dim),
            positions()};
  }
};

}  // namespace headlab
