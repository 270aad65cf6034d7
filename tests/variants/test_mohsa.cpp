// Overlapped heads: the identities of their spec, schedules, published sizes, statistics and
// wrong options.
#include "tests/catch.h"
#include "tests/layers_testing.h"

namespace headlab::test_mohsa {
using namespace testing;

namespace {

constexpr int64_t B = 2, T = 7, D = 20, H = 4, d = 6;

Layer mohsa(const std::string& options = "", int64_t heads = H) {
  return make_layer("mohsa", small_shape(heads, heads), options);
}

// The layer's overlap, read off its output projection.
int64_t overlap_of(const Layer& layer, const HeadShape& s) {
  return (parameter(layer, "o.weight").size(1) / s.heads - s.head_dim) / 2;
}

// The eight paradigms of the authors' code.
struct Paradigm {
  std::string options;
  std::vector<int64_t> of_twelve;
};
const std::vector<Paradigm> kParadigms{
    {", overlap: {direction: up}", {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
    {", overlap: {start: 1, every: 1}", {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
    {", overlap: {direction: up, start: 0, every: 2}", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5}},
    {", overlap: {start: 1, every: 2}", {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6}},
    {", overlap: {direction: down}", {11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
    {", overlap: {direction: down, start: 1}", {12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}},
    {", overlap: {direction: down, every: 2}", {5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0}},
    {", overlap: {direction: down, start: 1, every: 2}", {6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1}}};

}  // namespace

TEST_CASE("mohsa: without overlap it is multi-head attention", "[mohsa]") {
  const auto mha = make_layer("mha", small_shape(), ", bias: true");
  const auto layer = mohsa(", overlap: 0, qkv_bias: true");
  copy_weights(layer, mha);
  const auto x = random({B, T, D}), cotangent = random({B, T, D});
  const Rotary rotary;
  auto ctx = causal();
  ctx.rotary = &rotary;
  const auto expected = run(mha, x, ctx), got = run(layer, x, ctx);
  REQUIRE(difference(expected.y, got.y) < 1e-13);
  REQUIRE(difference(expected.map, got.map) < 1e-14);
  (expected.y * cotangent).sum().backward();
  (got.y * cotangent).sum().backward();
  for (const auto& p : mha->named_parameters()) {
    INFO(p.key());
    REQUIRE(difference(p.value().grad(), parameter(layer, p.key()).grad()) < 1e-12);
  }
}

TEST_CASE("mohsa: attends as collaborative heads that mix bands of features", "[mohsa]") {
  for (int64_t o : {1, 4, 9}) {
    const auto layer = mohsa(", qkv_bias: true, overlap: " + std::to_string(o));
    const auto collaborative = make_layer("collaborative", small_shape());
    copy_weights(collaborative, layer);  // q, k, v
    const auto feature = at::arange(H * d), first = (at::arange(H) * d).unsqueeze(1);
    const auto band = ((feature >= first - o) & (feature < first + d + o)).to(at::kDouble);
    set(collaborative, "mixing", band);
    set(collaborative, "content_bias.weight",
        at::matmul(band * parameter(layer, "q.bias"), parameter(layer, "k.weight")));
    const auto x = random({B, T, D});
    REQUIRE(difference(run(layer, x, causal()).map, run(collaborative, x, causal()).map) < 1e-12);
    layer->forward(x, causal()).y.sum().backward();
    REQUIRE(parameter(layer, "k.bias").grad().abs().max().item<double>() < 1e-12);
  }
}

TEST_CASE("mohsa: the output is the sum of what each head writes of all values", "[mohsa]") {
  for (int64_t o : {0, 2, 9}) {
    const int64_t width = d + 2 * o;
    const auto layer = mohsa(", qkv_bias: true, overlap: " + std::to_string(o));
    const auto x = random({B, T, D});
    const auto seen = run(layer, x, causal());
    const auto v = at::linear(x, parameter(layer, "v.weight"), parameter(layer, "v.bias"));
    auto y = parameter(layer, "o.bias").expand({B, T, D});
    for (int64_t i = 0; i < H; ++i) {
      // Head i's columns, laid at its features of a padded row; what lies in the pad is dropped.
      const auto columns = parameter(layer, "o.weight").narrow(1, i * width, width);
      const auto laid = at::constant_pad_nd(columns, {i * d, (H - 1 - i) * d});
      const auto writes = laid.narrow(1, o, H * d);  // [D, H*d]
      y = y + at::linear(at::matmul(seen.map.select(1, i), v), writes);
    }
    REQUIRE(difference(seen.y, y) < 1e-12);
  }
}

TEST_CASE("mohsa: columns beyond the first and last feature are dead", "[mohsa]") {
  const int64_t o = 8, width = d + 2 * o;
  const auto layer = mohsa(", overlap: 8");
  const auto x = random({B, T, D});
  const auto before = layer->forward(x).y;
  before.square().sum().backward();
  const auto gradient = parameter(layer, "o.weight").grad();
  auto weight = parameter(layer, "o.weight").detach().clone();
  int64_t dead = 0;
  for (int64_t i = 0; i < H; ++i) {
    const int64_t left = std::max<int64_t>(0, o - i * d);
    const int64_t right = std::max<int64_t>(0, o - (H - 1 - i) * d);
    for (auto [first, n] : {std::pair{int64_t{0}, left}, {width - right, right}}) {
      REQUIRE(gradient.narrow(1, i * width + first, n).eq(0).all().item<bool>());
      weight.narrow(1, i * width + first, n).normal_(0, 100);
      dead += n;
    }
    REQUIRE(gradient.narrow(1, i * width + left, width - left - right).ne(0).all().item<bool>());
  }
  REQUIRE(dead == 2 * (8 + 2));
  set(layer, "o.weight", weight);
  REQUIRE(difference(layer->forward(x).y, before) == 0);
}

TEST_CASE("mohsa: heads that see all features attend alike", "[mohsa]") {
  const auto x = random({B, T, D});
  auto spread = [&](int64_t o) {
    const auto map = run(mohsa(", overlap: " + std::to_string(o)), x, causal()).map;
    return difference(map, map.narrow(1, 0, 1).expand_as(map));
  };
  REQUIRE(spread((H - 1) * d) < 1e-12);
  REQUIRE(spread((H - 1) * d + 5) < 1e-12);
  REQUIRE(spread((H - 1) * d - 1) > 1e-3);
}

TEST_CASE("mohsa: a single head has nobody to overlap with", "[mohsa]") {
  const auto layer = mohsa(", overlap: 5, qkv_bias: true", 1);
  const auto mha = make_layer("mha", small_shape(1, 1), ", bias: true");
  copy_weights(mha, layer);
  set(mha, "o.weight", parameter(layer, "o.weight").narrow(1, 5, d));
  const auto x = random({B, T, D});
  REQUIRE(difference(layer->forward(x, causal()).y, mha->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("mohsa: copied weights make another function, guard features the same", "[mohsa]") {
  const int64_t o = 2, inner = d - 2 * o;  // heads of 2 inside heads of 6
  const auto x = random({B, T, D});
  const auto mha = make_layer("mha", small_shape(), "");
  const auto layer = mohsa(", overlap: 2, o_bias: false");
  copy_weights(layer, mha);  // q, k, v
  auto columns = parameter(mha, "o.weight").view({D, H, d});
  set(layer, "o.weight", at::constant_pad_nd(columns, {o, o}).flatten(1));
  REQUIRE(difference(mha->forward(x).y, layer->forward(x).y) > 1e-3);

  auto shape = small_shape();
  shape.head_dim = inner;
  const auto small = make_layer("mha", shape, "");
  for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
    auto rows = parameter(small, name).view({H, inner, D});
    if (name[0] == 'q') rows = rows * std::sqrt(static_cast<double>(d) / inner);
    set(layer, name, at::constant_pad_nd(rows, {0, 0, o, o}).flatten(0, 1));
  }
  columns = parameter(small, "o.weight").view({D, H, inner});
  set(layer, "o.weight", at::constant_pad_nd(columns, {2 * o, 2 * o}).flatten(1));
  REQUIRE(difference(small->forward(x, causal()).y, layer->forward(x, causal()).y) < 1e-12);
}

TEST_CASE("mohsa: heads and features reversed change nothing, heads permuted do", "[mohsa]") {
  const auto x = random({B, T, D});
  for (int64_t o : {0, 2}) {
    const int64_t width = d + 2 * o;
    const auto options = ", overlap: " + std::to_string(o);
    const auto layer = mohsa(options), reversed = mohsa(options), swapped = mohsa(options);
    const auto order = at::tensor({1, 0, 2, 3}, at::kLong);
    for (const char* name : {"q.weight", "k.weight", "v.weight"}) {
      set(reversed, name, parameter(layer, name).flip(0));
      set(swapped, name,
          parameter(layer, name).view({H, d, D}).index_select(0, order).flatten(0, 1));
    }
    const auto columns = parameter(layer, "o.weight");
    set(reversed, "o.weight", columns.flip(1));
    set(swapped, "o.weight", columns.view({D, H, width}).index_select(1, order).flatten(1));
    for (const auto& other : {reversed, swapped}) set(other, "o.bias", parameter(layer, "o.bias"));
    const auto y = layer->forward(x, causal()).y;
    REQUIRE(difference(y, reversed->forward(x, causal()).y) < 1e-12);
    const double moved = difference(y, swapped->forward(x, causal()).y);
    if (o == 0)
      REQUIRE(moved < 1e-12);
    else
      REQUIRE(moved > 1e-3);
  }
}

TEST_CASE("mohsa: the overlap follows the depth by all eight paradigms", "[mohsa]") {
  auto shape = small_shape();
  shape.layers = 12;
  for (const auto& paradigm : kParadigms)
    for (shape.layer = 0; shape.layer < 12; ++shape.layer) {
      INFO(paradigm.options << ", layer " << shape.layer);
      const auto layer = fresh("mohsa", shape, paradigm.options);
      REQUIRE(overlap_of(layer, shape) == paradigm.of_twelve[shape.layer]);
      REQUIRE(layer->forward(at::randn({1, 3, D})).y.sizes() == at::IntArrayRef({1, 3, D}));
    }
  REQUIRE(overlap_of(fresh("mohsa", shape, ""), shape) == 1);
}

TEST_CASE("mohsa: whole models grow by the published numbers of parameters", "[mohsa]") {
  struct Stage {
    int64_t layers, width, heads, head_dim;
  };
  struct Whole {
    std::vector<Stage> stages;
    std::vector<int64_t> extra;  // by paradigm
  };
  const std::vector<Whole> models{
      {{{12, 192, 12, 16}},
       {304128, 359424, 138240, 193536, 304128, 359424, 138240, 193536}},  // ViT-Tiny
      {{{24, 192, 4, 48}},
       {423936, 460800, 202752, 239616, 423936, 460800, 202752, 239616}},  // CaiT-xxs24
      {{{2, 96, 3, 32}, {2, 192, 6, 32}, {6, 384, 12, 32}, {2, 768, 24, 32}},
       {1145664, 1280448, 539136, 673920, 336960, 471744, 134784, 269568}},  // Swin-T
  };
  for (const auto& model : models)
    for (size_t n = 0; n < kParadigms.size(); n += 3) {
      HeadShape shape;
      shape.layers = 0;
      for (const auto& stage : model.stages) shape.layers += stage.layers;
      int64_t extra = 0;
      for (const auto& stage : model.stages)
        for (int64_t i = 0; i < stage.layers; ++i, ++shape.layer) {
          shape.d_model = stage.width;
          shape.heads = shape.kv_heads = stage.heads;
          shape.head_dim = stage.head_dim;
          extra += parameter(fresh("mohsa", shape, kParadigms[n].options), "o.weight").numel() -
                   stage.width * stage.heads * stage.head_dim;
        }
      INFO("paradigm " << n + 1 << " with " << shape.layers << " layers");
      REQUIRE(extra == model.extra[n]);
    }
}

TEST_CASE("mohsa: operations are those of the cost formula", "[mohsa]") {
  const auto plain = mohsa(", overlap: 0");
  const auto mha = make_layer("mha", small_shape());
  REQUIRE(plain->flops(7, 5, 35) == mha->flops(7, 5, 35));
  const auto wide = mohsa(", overlap: 3");
  REQUIRE(wide->flops(7, 5, 35) - plain->flops(7, 5, 35) ==
          2 * (4 * 3 * H * 35 + 2 * 3 * H * 7 * D));
  const auto talking = mohsa(", overlap: 3, pre: true, post: true");
  REQUIRE(talking->flops(7, 5, 35) - wide->flops(7, 5, 35) == 2 * 2 * H * H * 35);
  wide->mask_heads({0, 1});  // the kept rows: heads 2 and 3, and 3 features of head 1
  REQUIRE(wide->slice()->flops(7, 5, 35) ==
          2 * ((7 + 2 * 5) * D * 15 + 2 * 35 * 2 * 12 + 7 * 2 * 12 * D));
}

TEST_CASE("mohsa: projections start as torch's Linear, mixings standard normal", "[mohsa]") {
  const HeadShape shape{.d_model = 100, .heads = 40, .head_dim = 4, .kv_heads = 40};
  const auto layer = fresh("mohsa", shape, ", overlap: 3, qkv_bias: true, pre: true, post: true");
  for (const auto& p : layer->named_parameters()) {
    INFO(p.key());
    const double largest = p.value().abs().max().item<double>();
    if (p.key() == "pre" || p.key() == "post") {
      REQUIRE(p.value().std().item<double>() == Approx(1).epsilon(0.1));
      REQUIRE(largest > 2);
      continue;
    }
    const double bound = p.key().starts_with("o.") ? 1 / 20. : 1 / 10.;
    REQUIRE(largest <= bound * (1 + 1e-6));
    REQUIRE(largest > 0.8 * bound);
  }
}

TEST_CASE("mohsa: streamed statistics are those of the map", "[mohsa]") {
  const auto layer = mohsa(", overlap: 2, qkv_bias: true");
  REQUIRE(layer->own_statistics().empty());
  const auto x = random({B, T, D});
  const auto ctx = causal();
  const auto seen = run(layer, x, ctx);
  const auto values = at::linear(x, parameter(layer, "v.weight"), parameter(layer, "v.bias"));
  const auto v = at::constant_pad_nd(values, {2, 2}).unfold(2, d + 4, d).transpose(1, 2);
  require_statistics_of_map(layer, seen, v);
}

TEST_CASE("mohsa: wrong options say what they should be", "[mohsa]") {
  auto refusal = [](const std::string& options, const std::string& what) {
    REQUIRE_THROWS_WITH(mohsa(options), Catch::Contains(what));
  };
  refusal(", overlap: -1", "attention.overlap: must be at least 0");
  refusal(", overlap: up", "attention.overlap: must be an integer");
  refusal(", overlap: [1, 2]",
          "attention.overlap: must be an integer, or a mapping with direction, start and every");
  refusal(", overlap: {direction: sideways}", "attention.overlap.direction: must be");
  refusal(", overlap: {every: 0}", "attention.overlap.every: must be at least 1");
  refusal(", overlap: {begin: 1}", "attention.overlap.begin");
  REQUIRE_THROWS_WITH(make_layer("mohsa", small_shape(4, 2)),
                      Catch::Contains("are not grouped: kv_heads must be heads, 4"));
}

TEST_CASE("mohsa: the overlap is written as it was read", "[mohsa]") {
  REQUIRE(to_flow(read_kind("mohsa", ", overlap: 1").write_minimal()) == "{kind: mohsa}");
  REQUIRE(to_flow(read_kind("mohsa", ", overlap: 3").write_minimal()) ==
          "{kind: mohsa, overlap: 3}");
  REQUIRE(to_flow(read_kind("mohsa", ", overlap: {direction: down}").write_minimal()) ==
          "{kind: mohsa, overlap: {direction: down, start: 0, every: 1}}");
}

}  // namespace headlab::test_mohsa
