// Which keys a row sees: the kernels' rule and the tensors' against the sentence they stand for.
#include "core/kernels/attention_rows.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::test_attention_rows {
using namespace testing;

namespace {

// A window of W sees the last W keys, itself included.
bool sees(bool causal, int64_t window, int64_t place, int64_t key) {
  if (causal && key > place) return false;
  return window == 0 || std::abs(place - key) < window;
}

}  // namespace

TEST_CASE("kernels and masks see the same keys", "[attention_rows]") {
  for (const bool causal : {false, true})
    for (int64_t window = 0; window <= 6; ++window)
      for (const auto& [T, S] : {std::pair<int64_t, int64_t>{5, 5}, {2, 6}, {1, 4}, {1, 1}}) {
        AttentionMask mask;
        mask.causal = causal, mask.window = window;
        mask.key_length = at::tensor({S, S / 2, int64_t{0}});
        const auto allowed = allowed_keys(mask, T, S, at::kCPU).expand({3, 1, T, S});
        AttentionRows<float> rows{};
        rows.queries = T, rows.keys = S;
        rows.reach = key_reach(causal, window);
        rows.key_length = mask.key_length.const_data_ptr<int64_t>();
        for (int64_t b = 0; b < 3; ++b)
          for (int64_t i = 0; i < T; ++i) {
            const int64_t place = S - T + i;
            REQUIRE(row_place(rows, i) == place);
            const auto span = key_span(rows, b, i);
            for (int64_t j = 0; j < S; ++j) {
              INFO("causal " << causal << " window " << window << " T " << T << " S " << S << " b "
                             << b << " i " << i << " j " << j);
              const bool wanted = j < rows.key_length[b] && sees(causal, window, place, j);
              REQUIRE((j >= span.first && j <= span.last) == wanted);
              REQUIRE(allowed[b][0][i][j].item<bool>() == wanted);
            }
          }
      }
}

TEST_CASE("a mask that hides nothing is none", "[attention_rows]") {
  REQUIRE_FALSE(allowed_keys({}, 3, 4, at::kCPU).defined());
  AttentionMask mask;
  mask.causal = true;
  REQUIRE_FALSE(allowed_keys(mask, 1, 4, at::kCPU).defined());  // a lone query sees all
  REQUIRE(allowed_keys(mask, 2, 4, at::kCPU).defined());
  const auto distance = at::arange(-3, 4);
  REQUIRE_FALSE(within_reach(distance, key_reach(false, 0)).defined());
  REQUIRE(within_reach(distance, key_reach(false, 2)).sum().item<int64_t>() == 3);
  REQUIRE(within_reach(distance, key_reach(true, 2)).sum().item<int64_t>() == 2);
}

}  // namespace headlab::test_attention_rows
