// The kernels of attention by blocks of rows, with the warps of a GPU that a CPU runs one after the
// other, against the path that holds the map.
#include <torch/cuda.h>

#include <limits>

#include "core/attention/call/attention_call.h"
#include "core/attention/maps/map.h"
#include "core/attention/paths/paths.h"
#include "core/kernels/compose_block.h"
#include "core/torch.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/serial_team.h"
#include "variants/entmax/entmax_rows.h"
#include "variants/sigmoid/sigmoid_rows.h"
#include "variants/softpick/softpick_rows.h"

namespace headlab::test_compose_block {
using namespace testing;

namespace {

constexpr int64_t B = 2, d = 5, e = 7, R = 2;

template <class T>
constexpr auto kType = std::is_same_v<T, float> ? at::kFloat : at::kDouble;

// A call and what its kernels need beside it.
struct Case {
  int64_t H = 3, T = 1, S = 1;
  at::ScalarType type = at::kDouble;
  double number = 0;
  bool composed = false;
  AttentionCall call;
  Tensor pre, pre_key, post, post_key;  // [B,T,H,H], [B,2R+1,S,H]
  HeadNorm norm;                        // behind post
  std::vector<Tensor> inputs;           // that have gradients

  Case(int64_t queries, int64_t keys, int seed, const MapPtr& map, at::ScalarType of)
      : T(queries), S(keys), type(of) {
    torch::manual_seed(seed);
    call.q = input({B, H, T, d}), call.k = input({B, H, S, d}), call.v = input({B, H, S, e});
    call.map = map;
    call.scale = 0.6;
    call.causal = seed % 2 == 0;
    call.reach = key_reach(call.causal, seed % 3 == 1 ? 1 + seed % 9 : 0);
    if (seed % 4 == 1) call.key_length = at::randint(1, S + 1, {B}, at::kLong);
    if (seed % 4 == 2) call.allowed = at::rand({B, 1, T, S}) < 0.6;
    if (seed % 5 == 3) call.allowed = at::rand({1, H, T, S}) < 0.3;
    if (seed % 3 == 2) call.bias = random({1, H, T, S}).to(type);
    if (seed % 6 == 4) call.distance_bias = random({H, S + T - 1}).to(type);
    call.backend = Backend::kEager;
  }
  Tensor input(at::IntArrayRef sizes) {
    return inputs.emplace_back(random(sizes).to(type).requires_grad_());
  }
  void compose(bool with_pre, bool with_post) {
    composed = true;
    if (with_pre) {
      pre = input({B, T, H, H}), pre_key = input({B, 2 * R + 1, S, H});
      call.pre = {pre, pre_key};
    }
    if (with_post) {
      post = input({B, T, H, H}), post_key = input({B, 2 * R + 1, S, H});
      call.post = {post, post_key};
    }
  }
  void normalise() {
    norm = {input({H}), input({H}), (at::rand({H}) + 0.1).to(type), 1e-3};
    call.post = call.post.normed(norm);
  }
  void drop() {
    call.dropout = 0.4;
    call.rng = {.seed = 3, .step = 2};
  }
};

// Outputs and gradients, in the order of Case::inputs.
struct Numbers {
  Tensor out;
  std::vector<Tensor> gradients;
};

Numbers by_eager(Case& c, const Tensor& g) {
  const auto out = attended(c.call).out;
  return {out.detach(), torch::autograd::grad({out}, c.inputs, {g})};
}

// Tensors that are written, with poison in them.
Tensor poisoned(at::IntArrayRef sizes, at::ScalarType type) {
  return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), type);
}
template <class T>
T* at_first(const Tensor& t) {
  return t.defined() ? t.mutable_data_ptr<T>() : nullptr;
}
template <class T>
View<T> written(const Tensor& t) {
  View<T> view;
  view.data = at_first<T>(t);
  std::copy_n(t.sizes().begin(), 4, view.size);
  std::copy_n(t.strides().begin(), 4, view.stride);
  return view;
}

template <template <class> class Map, class T>
Numbers by_warps(const Case& c, const Tensor& g, const SerialTeam<T>& team, int64_t slots) {
  using Of = Map<SerialLanes<T>>;
  std::vector<Tensor> held;
  auto call = c.call;
  call.q = (call.q * call.scale).detach();
  ComposeProblem<T> p;
  static_cast<AttentionRows<T>&>(p) = kernel_rows<T>(call, at::kCPU, held);
  p.scale = 1;
  p.padded = padded_row(p.keys);
  p.v = view<T>(call.v);
  p.group = c.composed ? c.H : 1;
  p.rank = R;
  p.number = c.number, p.saved = Of::kSaved, p.traced = Of::kTraced;
  p.dropout = call.dropped();
  p.slots = slots;
  const auto of_rows = poisoned({B, c.H, c.T, Of::kSaved}, c.type);
  p.of_rows = at_first<T>(of_rows);
  const auto padded_key = [&](const Tensor& key) {
    const auto by_head = key.detach().transpose(2, 3);  // [B,2R+1,H,S]
    return held.emplace_back(at::constant_pad_nd(by_head, {0, p.padded - p.keys}).contiguous());
  };
  std::vector<Tensor> grads_of_sides;
  const auto side = [&](const Tensor& matrix, const Tensor& key, ComposeSide<T>& to) {
    if (!matrix.defined()) return;
    to.matrix = at_first<T>(matrix.detach());
    to.stride[0] = c.T * c.H * c.H, to.stride[1] = c.H * c.H;
    to.key = at_first<T>(padded_key(key));
    const auto of_matrix = grads_of_sides.emplace_back(poisoned(matrix.sizes(), c.type));
    const auto of_key =
        grads_of_sides.emplace_back(at::zeros({slots, B, 2 * R + 1, c.H, p.padded}, c.type));
    to.grad_matrix = at_first<T>(of_matrix);
    to.grad_key = at_first<T>(of_key);
  };
  side(c.pre, c.pre_key, p.pre), side(c.post, c.post_key, p.post);
  const auto of_norm = c.norm.weight.defined() ? poisoned({B, c.T, 2, c.H}, c.type) : Tensor();
  if (of_norm.defined())
    p.norm = {at_first<T>(c.norm.weight.detach()), at_first<T>(c.norm.bias.detach()),
              at_first<T>(c.norm.share), static_cast<T>(c.norm.eps), at_first<T>(of_norm)};
  const auto out = poisoned({B, c.H, c.T, e}, c.type), grad_q = poisoned({B, c.H, c.T, d}, c.type);
  const auto grad_k = at::zeros({slots * B, c.H, c.S, d}, c.type);
  const auto grad_v = at::zeros({slots * B, c.H, c.S, e}, c.type);
  p.output = written<T>(out);
  p.grad_output = view<T>(g);
  p.grad_q = written<T>(grad_q), p.grad_k = written<T>(grad_k), p.grad_v = written<T>(grad_v);
  for (int64_t task = 0; task < compose_tasks(p); ++task) {
    auto room = poisoned({block_room<SerialTeam<T>>(p, forward_maps(p))}, c.type);
    forward_task(team, p, Of(), task, at_first<T>(room), static_cast<T*>(nullptr));
  }
  for (int64_t task = 0; task < compose_tasks(p); ++task) {
    auto room = poisoned({block_room<SerialTeam<T>>(p, backward_maps(p))}, c.type);
    backward_task(team, p, Of(), task, at_first<T>(room), static_cast<T*>(nullptr));
  }
  const auto of_slots = [&](const Tensor& t) { return t.unflatten(0, {slots, B}).sum(0); };
  Numbers got{out, {grad_q * c.call.scale, of_slots(grad_k), of_slots(grad_v)}};
  for (size_t n = 0; n < grads_of_sides.size(); n += 2) {
    got.gradients.push_back(grads_of_sides[n]);
    got.gradients.push_back(
        grads_of_sides[n + 1].sum(0).narrow(3, 0, c.S).transpose(2, 3));  // [B,2R+1,S,H]
  }
  if (of_norm.defined())
    for (const auto& of : of_norm.sum(at::IntArrayRef({0, 1})).unbind(0))
      got.gradients.push_back(of);
  return got;
}

// Relative to the largest number.
struct Tolerance {
  double out, gradient;
};
constexpr Tolerance kDoubles{1e-9, 1e-9}, kFloats{2e-5, 1e-4};

void require_same(const Numbers& got, const Numbers& want, const Tolerance& tolerance) {
  const auto near = [](const Tensor& a, const Tensor& b, double most) {
    return difference(a, b) < most * std::max(1.0, b.abs().max().item<double>());
  };
  REQUIRE(got.out.isfinite().all().item<bool>());
  REQUIRE(near(got.out, want.out, tolerance.out));
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (size_t n = 0; n < want.gradients.size(); ++n) {
    INFO("gradient " << n);
    REQUIRE(near(got.gradients[n], want.gradients[n], tolerance.gradient));
  }
}

struct Parts {
  bool pre = false, post = false, norm = false, drops = false;
};

template <template <class> class Map, class T>
void compare_case(const MapPtr& map, double number, int64_t queries, int64_t keys, int seed,
                  const Parts& parts, std::initializer_list<WarpOrder> other_orders) {
  Case c(queries, keys, seed, map, kType<T>);
  c.number = number;
  if (parts.pre || parts.post) c.compose(parts.pre, parts.post);
  if (parts.norm) c.normalise();
  if (parts.drops) c.drop();
  INFO(queries << " queries, " << keys << " keys, pre " << parts.pre << ", post " << parts.post
               << ", norm " << parts.norm << ", drops " << parts.drops << ", seed " << seed << ", "
               << c.type);
  const auto g = random({B, c.H, queries, e}).to(c.type);
  const auto want = by_eager(c, g);
  const int64_t slots = 1 + seed % 3;
  const auto got = by_warps<Map, T>(c, g, {4}, slots);
  require_same(got, want, std::is_same_v<T, float> ? kFloats : kDoubles);
  for (auto order : other_orders) {
    const auto again = by_warps<Map, T>(c, g, {4, order}, slots);
    REQUIRE(at::equal(again.out, got.out));
    for (size_t n = 0; n < got.gradients.size(); ++n)
      REQUIRE(at::equal(again.gradients[n], got.gradients[n]));
  }
}

template <template <class> class Map>
void compare(const MapPtr& map, double number) {
  int seed = 0;
  for (const auto& [T, S] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, 9}, {7, 7}, {16, 16}, {33, 33}, {17, 40}, {5, 64}, {130, 130}})
    for (const auto& [pre, post] :
         {std::pair(false, false), {true, false}, {false, true}, {true, true}})
      for (const bool drops : {false, true}) {
        const Parts parts{.pre = pre, .post = post, .drops = drops};
        compare_case<Map, double>(map, number, T, S, ++seed, parts,
                                  {WarpOrder::kFalling, WarpOrder::kRandom});
        compare_case<Map, float>(map, number, T, S, seed, parts, {});
      }
}

// Rows of many blocks and panels.
template <template <class> class Map>
void compare_long(const MapPtr& map, double number) {
  const Parts all{.pre = true, .post = true, .drops = true};
  compare_case<Map, double>(map, number, 533, 533, 2, all, {});
  compare_case<Map, float>(map, number, 1000, 1000, 3, {}, {WarpOrder::kRandom});
}

}  // namespace

TEST_CASE("the softmax by warps gives the numbers of the map, in any order the same bits",
          "[kernels]") {
  const double none = -std::numeric_limits<double>::infinity();
  compare<SoftmaxRow>(plain_softmax(), none);
}
TEST_CASE("a norm over heads by warps gives the numbers of the map", "[kernels]") {
  int seed = 0;
  for (int64_t T : {1, 7, 33, 130})
    for (const bool drops : {false, true}) {
      const Parts parts{.post = true, .norm = true, .drops = drops};
      const double none = -std::numeric_limits<double>::infinity();
      compare_case<SoftmaxRow, double>(plain_softmax(), none, T, T, ++seed, parts,
                                       {WarpOrder::kFalling, WarpOrder::kRandom});
      compare_case<SoftmaxRow, float>(plain_softmax(), none, T, T, seed, parts, {});
    }
}
TEST_CASE("softpick by warps gives the numbers of the map", "[kernels]") {
  compare<SoftpickRow>(make_map("softpick"), 1e-8);
}
TEST_CASE("sigmoids by warps give the numbers of the map", "[kernels]") {
  compare<SigmoidRow>(make_map("{kind: sigmoid, offset: -0.7}"), -0.7);
}
TEST_CASE("entmax by warps gives the numbers of the map", "[kernels]") {
  for (double alpha : {1.2, 1.5, 2.})
    compare<EntmaxRow>(make_map("{kind: entmax, alpha: " + std::to_string(alpha) + "}"), alpha);
}

TEST_CASE("rows of many blocks by warps give the numbers of the map", "[kernels][.slow]") {
  const double none = -std::numeric_limits<double>::infinity();
  compare_long<SoftmaxRow>(plain_softmax(), none);
  compare_long<SoftpickRow>(make_map("softpick"), 1e-8);
  compare_long<SigmoidRow>(make_map("{kind: sigmoid, offset: -0.7}"), -0.7);
  compare_long<EntmaxRow>(make_map("{kind: entmax, alpha: 1.5}"), 1.5);
  const Parts normed{.post = true, .norm = true, .drops = true};
  compare_case<SoftmaxRow, double>(plain_softmax(), none, 533, 533, 4, normed,
                                   {WarpOrder::kRandom});
}

}  // namespace headlab::test_compose_block
