// Heads that become latent ones: the authors' numbers, what is exact, what is refused.
#include <cmath>

#include "experiments/cases/case_file.h"
#include "experiments/conversion/latent_model.h"
#include "experiments/conversion/to_mla.h"
#include "experiments/models/position_kinds.h"
#include "headlab_build.h"
#include "tests/layers_testing.h"

namespace headlab::test_to_mla {
using namespace testing;

namespace {

using Catch::Contains;

const std::filesystem::path kConversions =
    std::filesystem::path(build::kSourceDir) / "tests/golden/to_mla";

// A layer of mha that turns keys by rope where `rotary` says so, and tokens of unequal features.
struct Trained {
  HeadShape shape;
  bool rotary;
  std::shared_ptr<AttentionHeads> heads;
  TrainedLayer layer;
  Tensor tokens = random({3, 40, 20}) * at::linspace(0.2, 2, 20, at::kDouble);

  Trained(int64_t kv_heads, bool turns, const std::string& options = "")
      : shape(shape_of(kv_heads)),
        rotary(turns),
        heads(make_layer("mha", shape, options)),
        layer{"layer 3",
              read_kind("mha", options),
              shape,
              {.rotary = turns},
              module_tensors(*heads)} {}
  static HeadShape shape_of(int64_t kv_heads) {
    auto shape = small_shape(4, kv_heads);
    shape.head_dim = 8;
    return shape;
  }
  Calibration calibration() const {
    const auto moment = token_moment(tokens, {});
    return {moment, moment};
  }
  Conversion converted(const LatentSettings& settings) const {
    return to_mla(layer, settings, calibration(), /*half_first=*/true);
  }
  Tensor y(AttentionHeads& of, const Tensor& x, RopeLayout layout) const {
    const Rotary turn(10000, layout, 1);
    auto ctx = causal();
    if (rotary) ctx.rotary = &turn;
    return of.forward(x, ctx).y;
  }
  // Of what it becomes, relative to what it was.
  double error(const LatentSettings& settings) const {
    const auto made = converted(settings);
    auto other = shape;
    other.kv_heads = made.kv_heads;
    KindBlock block(head_registry(), "mla");
    Problems problems;
    block.read(*made.attention, "attention", problems);
    problems.raise();
    const auto mla = make_heads(block, other);
    mla->to(at::kDouble);
    mla->eval();
    load_into(*mla, made.weights);
    at::NoGradGuard no_grad;
    const auto x = random({2, 9, 20});
    const auto was = y(*heads, x, RopeLayout::kHalf);
    return ((y(*mla, x, RopeLayout::kInterleaved) - was).norm() / was.norm()).item<double>();
  }
};

}  // namespace

TEST_CASE("the authors' conversions come out", "[convert]") {
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConversions)) {
    INFO(entry.path().string());
    const auto judged = judge_case(entry.path(), at::kCPU, Backend::kAuto);
    for (const auto& verdict : judged.verdicts) {
      INFO(verdict_line(verdict));
      CHECK(verdict.pass);
    }
    ++cases;
  }
  REQUIRE(cases >= 7);
}

TEST_CASE("a conversion that leaves nothing out says what the old heads said", "[convert]") {
  const std::string biased = ", bias: true";
  for (const auto& options : {std::string(), biased}) {
    INFO(options);
    LatentSettings all;
    // Without positions the latent has all keys and values.
    all.kv_rank = 2 * 2 * 8;
    CHECK(Trained(2, false, options).error(all) < 1e-12);
    // One kv head keeps all of its pairs.
    all.kv_rank = 8;
    CHECK(Trained(1, true, options).error(all) < 1e-10);
    // As many features with rope as there are keys.
    LatentSettings more;
    more.kv_rank = 2 * 2 * 8 - 8;
    CHECK(Trained(2, true, options).error(more) > 1e-3);
    // The rank of what 20 features can make (and a bias), balanced or not.
    LatentSettings ranked;
    ranked.kv_rank = 21;
    for (const auto& balance : {std::optional(1.0), std::optional(3.0), std::optional<double>()}) {
      ranked.balance = balance;
      const Trained trained(2, false, options);
      CHECK(trained.error(ranked) < 1e-10);
    }
  }
}

TEST_CASE("queries get a latent of their own", "[convert]") {
  LatentSettings settings;
  settings.kv_rank = 32, settings.q_rank = 20;
  CHECK(Trained(2, false).error(settings) < 1e-10);
  settings.q_rank = 5;
  CHECK(Trained(2, false).error(settings) > 1e-3);
}

TEST_CASE("less is kept by a smaller latent, and it is said how much", "[convert]") {
  const Trained trained(2, true);
  double before = 0;
  for (const int64_t rank : {4, 10, 16, 24}) {
    LatentSettings settings;
    settings.kv_rank = rank;
    const auto made = trained.converted(settings);
    CHECK(*made.latent_share > before);
    CHECK(*made.latent_share <= 1 + 1e-12);
    before = *made.latent_share;
    CHECK(*made.rope_share > 0.5);  // the half that varies most
  }
}

TEST_CASE("tokens beyond their length do not count", "[convert]") {
  auto x = random({2, 5, 3});
  const auto length = at::tensor({5, 2}, at::kLong);
  const auto moment = token_moment(x, length);
  x[1].narrow(0, 2, 3).fill_(100);
  REQUIRE(difference(token_moment(x, length), moment) == 0);
  REQUIRE(moment[3][3].item<double>() == 7);
}

TEST_CASE("what cannot become latent heads is refused", "[convert]") {
  const auto refuses = [](const Trained& trained, const LatentSettings& settings,
                          const std::string& what) {
    REQUIRE_THROWS_WITH(trained.converted(settings), Contains(what));
  };
  refuses(Trained(2, true, ", qk_norm: true"), {}, "qk_norm");
  refuses(Trained(2, true, ", map: entmax"), {}, "softmax alone");
  LatentSettings settings;
  settings.rope_dim = 6;
  refuses(Trained(2, true), settings, "divide head_dim 8");
  settings.rope_dim = 4;
  refuses(Trained(2, true), settings, "multiple of head_dim / rope_dim = 2");
  settings.rope_dim = 8, settings.freqfold = 3;
  refuses(Trained(2, true), settings, "must divide the 4 frequencies");
  settings = {};
  settings.kv_rank = 25;
  refuses(Trained(2, true), settings, "at most 24");
}

}  // namespace headlab::test_to_mla
