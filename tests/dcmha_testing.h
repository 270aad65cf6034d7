// What the tests of dcmha share: layers of every combination of options, and their gradients.
#pragma once

#include "tests/heads_testing.h"

namespace headlab::testing {

inline const std::vector<std::string> kDcmhaOptions{
    "",
    ", static: true, qk_norm: true, bias: true",
    ", pre: false",
    ", post: false, static: true",
    ", query_wise: false",
    ", key_wise: false, rank: 3",
    ", query_wise: false, key_wise: false, static: true",
    ", gelu: erf, hidden: 5, qk_norm: true, qk_norm_kind: layer",
};

inline std::shared_ptr<AttentionHeads> dcmha(const std::string& options = "",
                                             HeadShape s = small_shape()) {
  return make_layer("dcmha", s, options);
}

}  // namespace headlab::testing
