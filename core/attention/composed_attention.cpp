// Attention through composed maps: the path by blocks of rows (core/kernels/compose_rows.h) and its
// derivative, and when it serves.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>

#include "core/attention/attend.h"
#include "core/attention/compose.h"
#include "core/attention/map_statistics.h"
#include "core/attention/observer.h"
#include "core/attention/precision.h"
#include "core/attention/require_maps.h"
#include "core/kernels/compose_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Dense, the last dimension padded with zeros to whole lanes.
Tensor in_lanes(const Tensor& x) {
  const int64_t over = x.size(-1) % kComposeLanes;
  if (over == 0) return x.contiguous();
  return at::constant_pad_nd(x, {0, kComposeLanes - over}).contiguous();  // keeps x's order else
}

Tensor matrices(const Tensor& m) {  // [B,T,H,H], every [H,H] dense
  const bool dense = !m.defined() || (m.stride(3) == 1 && m.stride(2) == m.size(3));
  return dense ? m : m.contiguous();
}

// The kernels want gates behind the rows, if of 0: [B,2R(+1),S,H] -> [B,2R+1,S,H].
Tensor with_gates(const Tensor& key) {
  if (!key.defined() || key.size(1) % 2 == 1) return key;
  return at::constant_pad_nd(key, {0, 0, 0, 0, 0, 1});
}

// Factors [B,2R+1,S,H] -> [B,2R+1,H,padded].
Tensor key_factors(const Tensor& key) {
  return key.defined() ? in_lanes(key.transpose(2, 3)) : key;
}

// What the scores and weights of a call are made of. Undefined: none.
struct Call {
  Tensor q, k, v;  // in lanes; q times the scale
  Tensor pre, pre_key, post, post_key;
  Tensor sink;                       // [H]
  Tensor allowed, bias, key_length;  // [B,H,T,S], [B,H,T,S] or by distance [H,S+T-1], [B]
  bool causal = false;
  int64_t window = 0;
  std::optional<RowMap> map;  // none: the softmax
};
constexpr int kWithGradient = 8;  // q to sink

// Carries a map from the forward to the backward pass.
struct SavedMap : torch::CustomClassHolder {
  std::optional<RowMap> map;
  explicit SavedMap(const std::optional<RowMap>& saved) : map(saved) {}
};

template <class T>
T* data(const Tensor& t) {
  return t.defined() ? t.data_ptr<T>() : nullptr;
}

// A call as the kernels want it; holds what they read.
template <class T>
struct Problem : ComposeProblem<T> {
  std::vector<Tensor> held;

  Problem(const Call& call, const Tensor& lse) : ComposeProblem<T>{} {
    this->B = call.q.size(0), this->H = call.q.size(1), this->queries = call.q.size(2);
    this->keys = call.k.size(2);
    this->q = hold(call.q);
    strides(held.back(), this->q_stride, 3);
    this->d = held.back().size(3);
    this->scale = 1;  // is in q
    this->k_t = hold(in_lanes(call.k.transpose(2, 3)));
    this->padded = held.back().size(3);
    this->v = hold(call.v);
    this->e = held.back().size(3);
    set_side(call.pre, call.pre_key, this->pre);
    set_side(call.post, call.post_key, this->post);
    const auto& some_key = call.pre_key.defined() ? call.pre_key : call.post_key;
    this->rank = some_key.defined() ? some_key.size(1) / 2 : 0;
    if (call.map) set_map(*call.map);
    this->sink = data<T>(call.sink);
    this->reach = key_reach(call.causal, call.window);
    this->key_length = data<int64_t>(call.key_length);
    this->allowed = data<bool>(call.allowed);
    strides(call.allowed, this->allowed_stride, 4);
    this->bias = data<T>(call.bias);
    if (call.bias.defined() && call.bias.dim() == 2)  // by distance: i's keys start at T - 1 - i
      set_distances(call.bias);
    else
      strides(call.bias, this->bias_stride, 4);
    this->lse = data<T>(lse);
    // Threads that one example each would not keep busy share examples.
    const int64_t threads = at::get_num_threads();
    this->slots = this->B % threads == 0 || this->B >= 8 * threads ? 1 : threads;
  }

  const T* hold(const Tensor& t) {
    held.push_back(t);
    return data<T>(t);
  }
  void set_side(const Tensor& matrix, const Tensor& key, ComposeSide<T>& side) {
    side.key = hold(key_factors(key));
    side.matrix = hold(matrices(matrix));
    strides(held.back(), side.stride, 2);
  }
  void set_map(const RowMap& map) {
    this->map = &map;
    if constexpr (std::is_same_v<T, float>)
      this->row = map.f32;
    else
      this->row = map.f64;
  }
  void set_distances(const Tensor& table) {
    this->bias += this->queries - 1;
    const int64_t steps[] = {0, table.stride(0), -1, 1};
    std::copy_n(steps, 4, this->bias_stride);
  }
  static void strides(const Tensor& t, int64_t* strides, int64_t n) {
    for (int64_t i = 0; i < n; ++i) strides[i] = t.defined() ? t.stride(i) : 0;
  }
  void run(ComposeSlot<T> work) const {
    at::parallel_for(0, this->B * this->slots, 1, [&](int64_t begin, int64_t end) {
      const auto scratch = std::make_unique_for_overwrite<T[]>(compose_scratch<T>(*this));
      for (int64_t task = begin; task < end; ++task)
        work(*this, task / this->slots, task % this->slots, scratch.get());
    });
  }
};

template <class T>
Tensor forward(const Call& call, const Tensor& lse) {
  Problem<T> problem(call, lse);
  auto out = at::empty({problem.B, problem.H, problem.queries, problem.e}, call.q.options());
  problem.output = data<T>(out);
  problem.run(compose_forward<T>());
  return out;  // [B,H,T,e]
}

// Gradients of q, k, v, pre, pre_key, post, post_key, sink.
template <class T>
torch::autograd::variable_list backward(const Call& call, const Tensor& lse, const Tensor& grad) {
  Problem<T> p(call, lse);
  p.k = p.hold(call.k);
  p.strides(p.held.back(), p.k_stride, 3);
  p.v_t = p.hold(in_lanes(call.v.transpose(2, 3)));
  p.grad_output = p.hold(grad.contiguous());
  const auto options = call.q.options();
  const auto grad_q = at::empty({p.B, p.H, p.queries, p.d}, options);
  const auto grad_k = at::zeros({p.slots, p.B, p.H, p.keys, p.d}, options);
  const auto grad_v = at::zeros({p.slots, p.B, p.H, p.keys, p.e}, options);
  p.grad_q = data<T>(grad_q), p.grad_k = data<T>(grad_k), p.grad_v = data<T>(grad_v);
  const auto of_matrices = [&](const Tensor& m) {
    return m.defined() ? at::empty({p.B, p.queries, p.H, p.H}, options) : Tensor();
  };
  const auto of_factors = [&](const Tensor& key) {
    return key.defined() ? at::zeros({p.slots, p.B, 2 * p.rank + 1, p.H, p.padded}, options)
                         : Tensor();
  };
  const auto pre = of_matrices(call.pre), post = of_matrices(call.post);
  const auto pre_key = of_factors(call.pre_key), post_key = of_factors(call.post_key);
  p.pre.grad_matrix = data<T>(pre), p.pre.grad_key = data<T>(pre_key);
  p.post.grad_matrix = data<T>(post), p.post.grad_key = data<T>(post_key);
  const auto sink = call.sink.defined() ? at::zeros({p.slots, p.B, p.H}, options) : Tensor();
  p.grad_sink = data<T>(sink);
  p.run(compose_backward<T>());
  const auto total = [](const Tensor& of_slots) {
    return of_slots.size(0) == 1 ? of_slots[0] : of_slots.sum(0);
  };
  const auto factors = [&](const Tensor& of_slots) {
    if (!of_slots.defined()) return Tensor();
    return total(of_slots).narrow(3, 0, p.keys).transpose(2, 3);  // [B,2R+1,S,H]
  };
  return {grad_q,
          total(grad_k),
          total(grad_v),
          pre,
          factors(pre_key),
          post,
          factors(post_key),
          sink.defined() ? total(sink).sum(0) : sink};
}

class ByRows : public torch::autograd::Function<ByRows> {
 public:
  // with_gradient: q, k, v, pre, pre_key, post, post_key, sink; an empty one stands for one that is
  // undefined, which torch does not take in a list. `call` holds the rest.
  static Tensor forward(torch::autograd::AutogradContext* ctx, const at::TensorList& with_gradient,
                        Call call) {
    take(with_gradient, call);
    const auto lse = at::empty(call.q.sizes().slice(0, 3), call.q.options());  // [B,H,T]
    auto saved = with_gradient.vec();
    saved.insert(saved.end(), {call.allowed, call.bias, call.key_length, lse});
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["causal"] = call.causal;
    ctx->saved_data["window"] = call.window;
    ctx->saved_data["map"] = c10::IValue::make_capsule(c10::make_intrusive<SavedMap>(call.map));
    return call.q.scalar_type() == at::kFloat ? headlab::forward<float>(call, lse)
                                              : headlab::forward<double>(call, lse);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "composed attention has second derivatives on backend eager only");
    const auto saved = ctx->get_saved_variables();
    Call call;
    take(saved, call);
    const auto* rest = &saved[kWithGradient];
    call.allowed = rest[0], call.bias = rest[1], call.key_length = rest[2];
    const auto& lse = rest[3];
    call.causal = ctx->saved_data["causal"].toBool();
    call.window = ctx->saved_data["window"].toInt();
    call.map =
        c10::static_intrusive_pointer_cast<SavedMap>(ctx->saved_data["map"].toCapsule())->map;
    auto out = call.q.scalar_type() == at::kFloat ? headlab::backward<float>(call, lse, grads[0])
                                                  : headlab::backward<double>(call, lse, grads[0]);
    out.emplace_back();  // of the rest
    return out;
  }

 private:
  static void take(at::TensorList given, Call& call) {
    call.q = given[0], call.k = given[1], call.v = given[2];
    Tensor* rest[] = {&call.pre, &call.pre_key, &call.post, &call.post_key, &call.sink};
    for (size_t i = 0; i < std::size(rest); ++i)
      *rest[i] = given[3 + i].numel() > 0 ? given[3 + i] : Tensor();
  }
};

// All that is added to the scores, the map's offsets included: [B,H,T,S], broadcast; or, where it
// depends on the distance alone, by it: [H,S+T-1]. Undefined: nothing.
Tensor all_biases(const Tensor& q, int64_t S, const HeadCall& call) {
  const int64_t T = q.size(2);
  const auto offset = call.map->offsets(call, S, q.options());
  if (call.position_bias && !call.bias.defined() && !offset.defined())
    return biases_by_distance(call, T, S).to(q.scalar_type()).contiguous();
  Tensor bias = call.bias;
  if (call.position_bias) bias = add_biases(q.new_zeros({}).expand({1, 1, T, S}), call);
  if (offset.defined()) bias = bias.defined() ? bias.to(q.scalar_type()) + offset : offset;
  return bias.defined() ? bias.to(q.scalar_type()).expand({q.size(0), q.size(1), T, S}) : bias;
}

bool rows_serve(const Tensor& q, const Tensor& k, const Tensor& bias, const HeadCall& call) {
  const bool type = q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble;
  return call.backend == Backend::kAuto && call.dropout == 0 && !call.uniform.defined() &&
         q.is_cpu() && type && q.numel() > 0 && k.numel() > 0 &&
         !(bias.defined() && bias.requires_grad()) &&
         (call.map->as_softmax() || call.map->row_map(call, k.size(2)));
}

// composed_attend() by rows; q comes times the scale, `bias` is what all_biases() gives.
Tensor attend_by_rows(const Tensor& q, const Tensor& k, const Tensor& v, const Composition& pre,
                      const Composition& post, const Tensor& bias, const HeadCall& call) {
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2), S = k.size(2);
  const auto& mask = call.mask;
  const auto or_empty = [&](const Tensor& t) {
    return t.defined() ? t.to(q.scalar_type()) : q.new_empty({0});
  };
  const auto matrix = [&](const Composition& c) {
    return c.is_identity() ? or_empty({}) : or_empty(c.matrix()).expand({B, T, H, H});
  };
  Call rest;
  if (mask.allowed.defined()) rest.allowed = mask.allowed.expand({B, H, T, S});
  if (mask.key_length.defined())
    rest.key_length = mask.key_length.to(at::kCPU, at::kLong).contiguous();
  rest.bias = bias;
  rest.causal = mask.causal, rest.window = mask.window;
  Tensor sink;
  const auto* softmax = call.map->as_softmax();
  if (!softmax) rest.map = call.map->row_map(call, S);
  if (softmax && softmax->sink().defined())
    sink = softmax->sink().to(q.options()).expand({H}).contiguous();
  const auto kv = [&](const Tensor& t) { return in_lanes(repeat_kv(or_empty(t), call, H)); };
  const Tensor with_gradient[] = {in_lanes(q),
                                  kv(k),
                                  kv(v),
                                  matrix(pre),
                                  or_empty(with_gates(pre.key())),
                                  matrix(post),
                                  or_empty(with_gates(post.key())),
                                  or_empty(sink)};
  static_assert(std::size(with_gradient) == kWithGradient);
  const auto out = ByRows::apply(at::TensorList(with_gradient), rest).narrow(3, 0, v.size(3));
  // A row is divided as a whole, so that this can be done last.
  const auto divisors = call.map->row_divisors(call, T, S, out.options());
  return divisors.defined() ? out / divisors.unsqueeze(-1) : out;  // [B,H,T,e]
}

}  // namespace

ComposedHeads composed_attend(const Tensor& q, const Tensor& k, const Tensor& v,
                              const Composition& pre, const Composition& post, const HeadCall& call,
                              double scale) {
  const bool composed = !pre.is_identity() || !post.is_identity();
  if (!composed && call.map->is_softmax()) return {attend(q, k, v, call, scale), {}};
  require_maps(call, composed ? "heads that are composed" : "maps other than the softmax");
  // By rows everything is of one type, which sums are made in.
  const auto wide_q = widened(q);
  const auto bias = all_biases(wide_q, k.size(2), call);
  const bool by_rows =
      rows_serve(wide_q, k, bias, call) && !pre.bias().defined() && !post.bias().defined();
  ComposedHeads heads;
  heads.out = by_rows
                  ? attend_by_rows(wide_q * scale, k, v, pre, post, bias, call).to(v.scalar_type())
                  : weighted_values(composed_maps(q, k, pre, post, call, scale).composed, v, call);
  if (!call.observer || !call.observer->wants_maps()) return heads;
  // The maps are made for the observer alone, so that what it sees changes nothing.
  at::NoGradGuard no_grad;
  const auto maps = heads.shown = composed_maps(q, k, pre, post, call, scale);
  observe_weights(
      {.scores = maps.scores, .p = maps.weights, .a = maps.composed, .v = v, .out = heads.out},
      call);
  return heads;
}

}  // namespace headlab
