// What weights say of heads: the matrices that every kind gives, held against the layer itself, and
// the statistics of circuits, held against the D x D and V x V matrices that they never form.
#include <cmath>
#include <limits>

#include "experiments/analysis/circuit_arrays.h"
#include "experiments/analysis/circuits.h"
#include "tests/hand_built.h"
#include "tests/layers_testing.h"
#include "tests/models_testing.h"

namespace headlab::test_circuits {
using namespace testing;

namespace {

constexpr int64_t H = 4, D = 20;

// What matrices() leave out.
void leave_matrices(const Layer& layer) {
  at::NoGradGuard no_grad;
  for (const auto& p : layer->named_parameters()) {
    if (p.key().ends_with(".bias") || p.key().ends_with("content_bias.weight")) p.value().zero_();
    if (p.key() == "kv_norm.weight") p.value().fill_(1);
  }
}

// One token attends to itself with all of its weight: y = sum_h g_h o_h v_h x.
void require_outputs(const Layer& layer) {
  leave_matrices(layer);
  const auto m = *layer->matrices();
  const auto x = random({3, 1, D});
  const auto out = layer->forward(x, causal());
  auto said = at::einsum("hde,hef,btf->bthd", {m.o, m.v, x});
  // A norm of latents between the matrices is not in them.
  const auto parameters = layer->named_parameters();
  if (const auto* down = parameters.find("kv_down.weight")) {
    auto squares = at::linear(x, *down)
                       .unflatten(2, {-1, parameters["k_up.weight"].size(1)})
                       .square()
                       .mean(-1);  // [3,1,latents]
    const auto buffers = layer->named_buffers();
    if (const auto* of_head = buffers.find("latents_map"))
      squares = squares.index_select(2, *of_head);
    said = said / (squares + 1e-6).sqrt().unsqueeze(3);
  }
  REQUIRE(said.size(2) == std::ssize(layer->head_ids()));
  if (out.gates.defined()) {
    const auto ids = at::tensor(layer->head_ids(), at::kLong);
    said = said * out.gates.index_select(2, ids).unsqueeze(3);
  }
  REQUIRE(relative_difference(out.y, said.sum(2)) < 1e-12);
}

// ln a_ij is scale (q x_i)(k x_j) but for what is the same for the whole row, with one scale for
// all heads.
void require_scores(const Layer& layer) {
  leave_matrices(layer);
  const auto m = *layer->matrices();
  const auto x = random({2, 7, D}) * 0.3;
  const auto centred = [](const Tensor& t) { return t - t.mean(-1, /*keepdim=*/true); };
  const auto got = centred(run(layer, x).map.log());
  const auto want = centred(at::einsum("hrd,bid,hre,bje->bhij", {m.q, x, m.k, x}));
  const auto scale = (got * want).sum() / want.square().sum();
  REQUIRE(scale.item<double>() > 0.01);
  REQUIRE(relative_difference(got, scale * want) < 1e-10);
}

struct Subject {
  const char *kind, *options;
  int64_t kv_heads = H;
};
const std::vector<Subject> kSoftmaxKinds{
    {"mha", ""},
    {"mha", ", bias: true", 2},
    {"mha", "", 1},
    {"collaborative", ", shared_dim: 9"},
    {"collaborative", ", scale: shared, content_bias: false"},
    {"mohsa", ", overlap: 2"},
    {"mohsa", ", overlap: 0, qkv_bias: true"},
    {"moh", ", shared: 1, active: 1", 2},
    {"gated", ", inner: {kind: mohsa, overlap: 3}"},
    {"gated", ", gate: sigmoid, inner: {kind: mha}", 2},
    {"bigbird", ""},
    {"entmax", ", alpha: 1"},
    {"talking", ", pre: false, post: false", 2},
};

Tensor matrix_product(const Tensor& a, const Tensor& b) {
  return at::matmul(a.mT(), b);
}  // [H,D,D]

double copying(const Tensor& matrix) {
  const auto lambda = at::linalg_eigvals(matrix);
  return (at::real(lambda).sum() / lambda.abs().sum()).item<double>();
}

const LabelledArray& array(const LabelledGroup& group, const std::string& name) {
  for (const auto& a : group.arrays)
    if (a.about.name == name) return a;
  FAIL("no array is called " << name);
  throw std::logic_error(name);
}

HeadMatrices random_heads(int64_t heads, int64_t r, int64_t e) {
  return {random({heads, r, D}), random({heads, r, D}), random({heads, e, D}),
          random({heads, D, e})};
}

}  // namespace

TEST_CASE("matrices of heads are those that their outputs are made of", "[circuits]") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      // What xsa takes out is no part of what matrices say.
      const auto layer = make_layer(kind, small_shape(), kind == "xsa" ? ", strength: 0" : "");
      const auto m = layer->matrices();
      if (!m) {
        const auto own = layer->own_statistics();
        const bool several_maps =
            std::any_of(own.begin(), own.end(), [](const Statistic& s) { return s.map > 0; });
        const auto& traits = layer->traits();
        const bool has_scores = traits.map == HeadMap::kTokens && traits.biases;  // of two tokens
        const bool quadratic = kind == "tpa";  // q, k and v are no products of x with a matrix
        REQUIRE((several_maps || quadratic || !has_scores));
        continue;
      }
      REQUIRE(m->q.sizes() == at::IntArrayRef({H, m->k.size(1), D}));
      REQUIRE(m->k.sizes() == m->q.sizes());
      REQUIRE(m->v.sizes() == at::IntArrayRef({H, layer->value_width(), D}));
      REQUIRE(m->o.sizes() == at::IntArrayRef({H, D, layer->value_width()}));
      REQUIRE_FALSE(m->q.requires_grad());
      if (!layer->traits().independent && kind != "moh") continue;  // mixed on the way
      if (!layer->traits().rows_sum_to_one) continue;               // nor is the one weight 1
      const auto own = layer->own_statistics();
      if (std::any_of(own.begin(), own.end(),
                      [](const Statistic& s) { return s.per == Per::kExpert; }))
        continue;  // tokens choose of what the heads are made
      require_outputs(layer);
      layer->mask_heads({1});
      require_outputs(layer->slice());
    }
}

TEST_CASE("matrices of heads are those that their scores are made of", "[circuits]") {
  for (const auto& [kind, options, kv_heads] : kSoftmaxKinds)
    DYNAMIC_SECTION(kind << options << ", " << kv_heads << " kv heads") {
      const auto layer = make_layer(kind, small_shape(H, kv_heads), options);
      require_scores(layer);
      require_outputs(layer);
      layer->mask_heads({0, 2});
      require_scores(layer->slice());
      require_outputs(layer->slice());
    }
}

TEST_CASE("circuits: factors give what the whole matrices give", "[circuits]") {
  for (const auto& [r, e] : std::vector<std::pair<int64_t, int64_t>>{{6, 5}, {27, 31}}) {
    const auto early = random_heads(3, r, e), late = random_heads(2, r + 1, e + 2);
    const auto qk = matrix_product(early.q, early.k), ov = matrix_product(early.v, early.o.mT());
    const auto spectrum = singular_values(query_key(early));
    REQUIRE(spectrum.sizes() == at::IntArrayRef({3, std::min(r, D)}));
    REQUIRE(relative_difference(spectrum, at::linalg_svdvals(qk).narrow(1, 0, spectrum.size(1))) <
            1e-11);
    REQUIRE(relative_difference(layer_singular_values(query_key(early)),
                                at::linalg_svdvals(qk.sum(0))) < 1e-11);
    const auto E = random({11, D}), U = random({11, D});
    for (int64_t h = 0; h < 3; ++h) {
      REQUIRE(ov_copying(early)[h].item<double>() == Approx(copying(ov[h])).epsilon(1e-9));
      const auto full = at::matmul(at::matmul(E, ov[h]), U.t());  // [V,V]
      REQUIRE(ov_copying_full(early, E, U)[h].item<double>() ==
              Approx(copying(full)).epsilon(1e-9));
    }
    const auto require = [&](const FactoredHeads& later, const Tensor& whole) {
      const auto got = composition(value_output(early), later);
      REQUIRE(got.sizes() == at::IntArrayRef({3, 2}));
      for (int64_t h = 0; h < 3; ++h)
        for (int64_t g = 0; g < 2; ++g)
          REQUIRE(got[h][g].item<double>() ==
                  Approx((at::matmul(ov[h], whole[g]).norm() / (ov[h].norm() * whole[g].norm()))
                             .item<double>())
                      .epsilon(1e-11));
    };
    require(query_key(late), matrix_product(late.q, late.k));
    require(key_query(late), matrix_product(late.k, late.q));
    require(value_output(late), matrix_product(late.v, late.o.mT()));
  }
}

TEST_CASE("circuits: 95 % of the squares, exactly or more", "[circuits]") {
  const auto rank = [](const Tensor& s) { return rank_95(s).item<int64_t>(); };
  REQUIRE(rank(at::ones({20}, at::kDouble)) == 19);
  REQUIRE(rank(at::ones({20}, at::kDouble) / 3) == 19);
  REQUIRE(rank(at::ones({21}, at::kDouble)) == 20);
  REQUIRE(rank(at::tensor({2., 1e-9}, at::kDouble)) == 1);
  REQUIRE(rank(at::zeros({4}, at::kDouble)) == 0);
  REQUIRE(at::equal(rank_95(at::tensor({3., 1., 1., 1.}, at::kDouble).view({2, 2})),
                    at::tensor({int64_t{2}, int64_t{2}})));
}

TEST_CASE("circuits: a head that copies has 1, one that suppresses -1, a silent one nothing",
          "[circuits]") {
  auto heads = random_heads(3, 4, 4);
  heads.o[0].copy_(heads.v[0].t());
  heads.o[1].copy_(-heads.v[1].t());
  heads.o[2].zero_();
  const auto got = ov_copying(heads);
  REQUIRE(got[0].item<double>() == Approx(1));
  REQUIRE(got[1].item<double>() == Approx(-1));
  REQUIRE(std::isnan(got[2].item<double>()));
}

TEST_CASE("circuits: heads of weights that are not finite have NaN, the others their numbers",
          "[circuits]") {
  const auto whole = random_heads(3, 6, 5);
  for (const double lost : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    auto heads = HeadMatrices{
        .q = whole.q.clone(), .k = whole.k.clone(), .v = whole.v.clone(), .o = whole.o.clone()};
    heads.q[1][2][3].fill_(lost);
    heads.o[1][2][3].fill_(lost);
    const auto check = [](const Tensor& got, const Tensor& want) {
      CHECK(got[1].isnan().all().item<bool>());
      for (const int64_t h : {0, 2}) CHECK(difference(got[h], want[h]) < 1e-12);
    };
    check(singular_values(query_key(heads)), singular_values(query_key(whole)));
    check(singular_values(value_output(heads)), singular_values(value_output(whole)));
    check(ov_copying(heads), ov_copying(whole));
    CHECK(layer_singular_values(query_key(heads)).isnan().all().item<bool>());
  }
}

TEST_CASE("circuits: the induction circuit written by hand shows in its weights", "[circuits]") {
  HandBuilt wanted;
  const auto model = hand_built_decoder(wanted);
  const auto group = circuits(heads_at(*model, "self"), model->embedding(), model->unembedding());
  const auto& by_key = array(group, "composition_k").values;  // [L,H,L,H]
  const int64_t heads = wanted.heads;
  const auto composed = [&](int64_t h, int64_t g) { return by_key[(h * 2 + 1) * heads + g]; };
  REQUIRE(by_key.size() == static_cast<size_t>(4 * heads * heads));
  // Who reads the subspace that (0,0) writes into: the key of (1,0), more than its query does.
  REQUIRE(composed(0, 0) > 2 * array(group, "composition_q").values[heads]);
  REQUIRE(array(group, "ov_copying_full").values[heads] == Approx(1).epsilon(1e-6));
}

TEST_CASE("circuits: results have the full grid, NaN where heads or matrices are not there",
          "[circuits]") {
  const auto model = small_decoder(
      "{layers: 4, d_model: 20, heads: 4, head_dim: 6, causal: false, tie: false, attention: "
      "{kind: mha}, attention_at: {\"1\": {kind: linformer}, \"2\": {kind: collaborative, "
      "shared_dim: 11}}}");
  auto layers = model->sites()[0].layers;
  (*layers[0])->mask_heads({2});
  (*layers[3])->mask_heads({0, 1, 2, 3});
  const auto of_model = [&] {
    return circuits(heads_at(*model, "self"), model->embedding(), model->unembedding());
  };
  const auto masked = of_model();
  for (int64_t l : {0, 3}) model->exchange("self", l, (*layers[l])->slice());
  const auto sliced = of_model();

  std::map<std::string, int64_t> size;
  for (const auto& axis : masked.axes) size[axis.about.name] = axis.size;
  REQUIRE(size == std::map<std::string, int64_t>{{"layer", 4},
                                                 {"head", 4},
                                                 {"layer2", 4},
                                                 {"head2", 4},
                                                 {"component", 11},
                                                 {"layer_component", 20}});
  REQUIRE(masked.arrays.size() == 9);
  for (size_t n = 0; n < masked.arrays.size(); ++n) {
    const auto &a = masked.arrays[n], &b = sliced.arrays[n];
    INFO(a.about.name);
    size_t numbers = 1;
    for (const auto& dim : a.dims) numbers *= size.at(dim);
    REQUIRE(a.values.size() == numbers);
    for (size_t i = 0; i < numbers; ++i)
      if (std::isnan(a.values[i]))
        REQUIRE(std::isnan(b.values[i]));
      else
        REQUIRE(a.values[i] == Approx(b.values[i]).epsilon(1e-9).margin(1e-12));
    for (const auto* text : {&a.about.name, &a.about.units, &a.about.long_name, &a.about.comment})
      REQUIRE_FALSE(text->empty());
  }
  const auto exists = [&](const char* name, int64_t place) {
    return std::isfinite(array(masked, name).values[place]);
  };
  for (int64_t l = 0; l < 4; ++l)
    for (int64_t h = 0; h < 4; ++h) {
      const bool there = l == 2 || (l == 0 && h != 2);
      REQUIRE(exists("ov_copying", l * 4 + h) == there);
      REQUIRE(exists("composition_q", (2 * 4 + 1) * 16 + l * 4 + h) == there);
    }
  REQUIRE(exists("qk_singular_values", 5));        // layer 0 has 6 components,
  REQUIRE_FALSE(exists("qk_singular_values", 6));  // layer 2 has 11
  REQUIRE(exists("qk_singular_values", 8 * 11 + 10));
  REQUIRE(exists("qk_layer_rank_95", 0));
  REQUIRE_FALSE(exists("qk_layer_rank_95", 1));
  REQUIRE_FALSE(exists("qk_layer_rank_95", 3));
  REQUIRE(array(masked, "composition_v").values[2 * 4 * 16 + 2] != 0.0);  // NaN: no such head
  REQUIRE(array(masked, "composition_v").values[2 * 4 * 16] == 0.0);      // from later to earlier

  REQUIRE(circuits(SiteHeads({.name = "self", .layers = {model->sites()[0].layers[1]}}))
              .arrays.empty());
  for (const auto& a : circuits(heads_at(*model, "self")).arrays)
    REQUIRE(a.about.name != "ov_copying_full");
}

}  // namespace headlab::test_circuits
