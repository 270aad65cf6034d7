// The sizes of a layer and its kind of heads, as the config of a case file says them.
#pragma once

#include "core/head_kinds.h"
#include "experiments/cases/case_file.h"

namespace headlab {

struct LayerSizes : Block {
  int64_t d_model = 0, heads = 0;
  std::optional<int64_t> head_dim, kv_heads;
  KindBlock attention{head_registry(), "mha"};

  void visit(Fields& f) override;
  void check(const Complain& complain) const override;

  HeadShape shape() const;
  // DataError where the file's w.* are too few for so many layers of this size.
  void check_weights(const CaseFile& file, int64_t layers = 1) const;
};

}  // namespace headlab
