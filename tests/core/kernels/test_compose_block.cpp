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

// A call and what its kernels need beside it.
struct Case {
  int64_t H = 3, T = 1, S = 1;
  double number = 0;
  bool by_head = false, composed = false;
  double dropout = 0;
  AttentionCall call;
  Tensor numbers;                       // [H]
  Tensor pre, pre_key, post, post_key;  // [B,T,H,H], [B,2R+1,S,H]
  std::vector<Tensor> inputs;           // that have gradients

  Case(int64_t queries, int64_t keys, int seed, const MapPtr& map) : T(queries), S(keys) {
    torch::manual_seed(seed);
    call.q = input({B, H, T, d}), call.k = input({B, H, S, d}), call.v = input({B, H, S, e});
    call.map = map;
    call.scale = 0.6;
    call.causal = seed % 2 == 0;
    call.reach = key_reach(call.causal, seed % 3 == 1 ? 1 + seed % 9 : 0);
    if (seed % 4 == 1) call.key_length = at::randint(1, S + 1, {B}, at::kLong);
    if (seed % 4 == 2) call.allowed = at::rand({B, 1, T, S}) < 0.6;
    if (seed % 5 == 3) call.allowed = at::rand({1, H, T, S}) < 0.3;
    if (seed % 3 == 2) call.bias = random({1, H, T, S});
    if (seed % 6 == 4) call.distance_bias = random({H, S + T - 1});
    call.backend = Backend::kEager;
  }
  Tensor input(at::IntArrayRef sizes) {
    return inputs.emplace_back(random(sizes).requires_grad_());
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
Tensor poisoned(at::IntArrayRef sizes) {
  return at::full(sizes, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
}
double* at_first(const Tensor& t) { return t.mutable_data_ptr<double>(); }
View<double> written(const Tensor& t) {
  View<double> view;
  view.data = at_first(t);
  std::copy_n(t.sizes().begin(), 4, view.size);
  std::copy_n(t.strides().begin(), 4, view.stride);
  return view;
}

template <template <class> class Map>
Numbers by_warps(const Case& c, const Tensor& g, const SerialTeam<double>& team, int64_t slots) {
  using Of = Map<SerialLanes<double>>;
  std::vector<Tensor> held;
  auto call = c.call;
  call.q = (call.q * call.scale).detach();
  ComposeProblem<double> p;
  static_cast<AttentionRows<double>&>(p) = kernel_rows<double>(call, at::kCPU, held);
  p.scale = 1;
  p.padded = padded_row(p.keys);
  p.v = view<double>(call.v);
  p.group = c.composed ? c.H : 1;
  p.rank = R;
  p.number = c.number, p.saved = Of::kSaved, p.traced = Of::kTraced;
  p.dropout = call.dropped();
  p.slots = slots;
  const auto of_rows = poisoned({B, c.H, c.T, Of::kSaved});
  p.of_rows = at_first(of_rows);
  const auto padded_key = [&](const Tensor& key) {
    const auto by_head = key.detach().transpose(2, 3);  // [B,2R+1,H,S]
    return held.emplace_back(at::constant_pad_nd(by_head, {0, p.padded - p.keys}).contiguous());
  };
  std::vector<Tensor> grads_of_sides;
  const auto side = [&](const Tensor& matrix, const Tensor& key, ComposeSide<double>& to) {
    if (!matrix.defined()) return;
    to.matrix = at_first(matrix.detach());
    to.stride[0] = c.T * c.H * c.H, to.stride[1] = c.H * c.H;
    to.key = at_first(padded_key(key));
    const auto of_matrix = grads_of_sides.emplace_back(poisoned(matrix.sizes()));
    const auto of_key =
        grads_of_sides.emplace_back(at::zeros({slots, B, 2 * R + 1, c.H, p.padded}, at::kDouble));
    to.grad_matrix = at_first(of_matrix);
    to.grad_key = at_first(of_key);
  };
  side(c.pre, c.pre_key, p.pre), side(c.post, c.post_key, p.post);
  const auto out = poisoned({B, c.H, c.T, e}), grad_q = poisoned({B, c.H, c.T, d});
  const auto grad_k = at::zeros({slots * B, c.H, c.S, d}, at::kDouble);
  const auto grad_v = at::zeros({slots * B, c.H, c.S, e}, at::kDouble);
  p.output = written(out);
  p.grad_output = view<double>(g);
  p.grad_q = written(grad_q), p.grad_k = written(grad_k), p.grad_v = written(grad_v);
  for (int64_t task = 0; task < compose_tasks(p); ++task) {
    auto room = poisoned({block_room<SerialTeam<double>>(p, forward_maps(p))});
    forward_task(team, p, Of(), task, at_first(room), static_cast<double*>(nullptr));
  }
  for (int64_t task = 0; task < compose_tasks(p); ++task) {
    auto room = poisoned({block_room<SerialTeam<double>>(p, backward_maps(p))});
    backward_task(team, p, Of(), task, at_first(room), static_cast<double*>(nullptr));
  }
  const auto of_slots = [&](const Tensor& t) { return t.unflatten(0, {slots, B}).sum(0); };
  Numbers got{out, {grad_q * c.call.scale, of_slots(grad_k), of_slots(grad_v)}};
  for (size_t n = 0; n < grads_of_sides.size(); n += 2) {
    got.gradients.push_back(grads_of_sides[n]);
    got.gradients.push_back(
        grads_of_sides[n + 1].sum(0).narrow(3, 0, c.S).transpose(2, 3));  // [B,2R+1,S,H]
  }
  return got;
}

void require_same(const Numbers& got, const Numbers& want, double tolerance) {
  REQUIRE(got.out.isfinite().all().item<bool>());
  REQUIRE(difference(got.out, want.out) < tolerance);
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (size_t n = 0; n < want.gradients.size(); ++n) {
    INFO("gradient " << n);
    REQUIRE(difference(got.gradients[n], want.gradients[n]) <
            tolerance * std::max(1.0, want.gradients[n].abs().max().item<double>()));
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
        Case c(T, S, ++seed, map);
        c.number = number;
        if (pre || post) c.compose(pre, post);
        if (drops) c.drop();
        INFO(T << " queries, " << S << " keys, pre " << pre << ", post " << post << ", drops "
               << drops << ", seed " << seed);
        const auto g = random({B, c.H, T, e});
        const auto want = by_eager(c, g);
        const int64_t slots = 1 + seed % 3;
        const auto got = by_warps<Map>(c, g, {4}, slots);
        require_same(got, want, 1e-9);
        for (auto order : {WarpOrder::kFalling, WarpOrder::kRandom}) {
          const auto again = by_warps<Map>(c, g, {4, order}, slots);
          REQUIRE(at::equal(again.out, got.out));
          for (size_t n = 0; n < got.gradients.size(); ++n)
            REQUIRE(at::equal(again.gradients[n], got.gradients[n]));
        }
      }
}

}  // namespace

TEST_CASE("the softmax by warps gives the numbers of the map, in any order the same bits",
          "[kernels]") {
  compare<SoftmaxRow>(plain_softmax(), -std::numeric_limits<double>::infinity());
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

}  // namespace headlab::test_compose_block
