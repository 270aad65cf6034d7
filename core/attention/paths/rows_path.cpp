// The path by blocks of rows (core/kernels/compose_rows.h), of maps, composed heads and dropout:
// its derivative, and what it serves.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>

#include "core/attention/composed/composition.h"
#include "core/attention/paths/held.h"
#include "core/attention/paths/paths.h"
#include "core/attention/precision.h"
#include "core/kernels/compose_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// The last dimension dense and padded with zeros to whole lanes; on a GPU rows begin where its
// matrix units can load them.
Tensor in_lanes(const Tensor& x) {
  const int64_t over = x.size(-1) % kRowLanes;
  const auto whole = over == 0 ? x : at::constant_pad_nd(x, {0, kRowLanes - over});
  const auto strides = whole.strides();
  const bool loads = x.is_cpu() || (whole.storage_offset() % 8 == 0 &&
                                    std::all_of(strides.begin(), strides.end() - 1,
                                                [](int64_t stride) { return stride % 8 == 0; }));
  return whole.stride(-1) == 1 && loads ? whole : whole.clone(at::MemoryFormat::Contiguous);
}

// Dense, heads beside each other in a row of a token, as the projection around them has them.
Tensor by_token(int64_t B, int64_t H, int64_t n, int64_t width, const at::TensorOptions& options) {
  return at::empty({B, n, H, width}, options).transpose(1, 2);  // [B,H,n,width]
}

template <class T>
View<T> writable(const Tensor& t) {
  View<T> written;
  written.data = t.data_ptr<T>();
  std::copy_n(t.sizes().begin(), 4, written.size);
  std::copy_n(t.strides().begin(), 4, written.stride);
  return written;
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
Tensor key_factors(const Tensor& key, int64_t padded) {
  if (!key.defined()) return key;
  return at::constant_pad_nd(key.transpose(2, 3), {0, padded - key.size(2)}).contiguous();
}

// What a call has a gradient for, all of one type; undefined: none.
struct Factors {
  Tensor q, k, v;  // in lanes; q times the scale
  Tensor pre, pre_key, post, post_key;
  Tensor by_head;  // [H] the map's number
  Tensor norm;     // [2,H] weight and bias of the norm behind `post`

  std::vector<Tensor*> all() {
    return {&q, &k, &v, &pre, &pre_key, &post, &post_key, &by_head, &norm};
  }
};
// And the rest of it.
struct Unlearned {
  AttentionCall call;
  RowMap map;
  bool coarse = false;  // ComposeProblem::coarse
  Tensor share = {};    // of the norm
  double eps = 0;
};

template <class T>
T* data(const Tensor& t) {
  return t.defined() ? t.data_ptr<T>() : nullptr;
}

// A call as the kernels want it; holds what they read.
template <class T>
struct Problem : ComposeProblem<T> {
  const RowMap& map;
  at::Device device;
  std::vector<Tensor> held;

  Problem(const Factors& f, const Unlearned& rest, const Tensor& of_rows)
      : map(rest.map), device(f.q.device()) {
    auto call = rest.call;
    call.q = f.q, call.k = f.k;
    static_cast<AttentionRows<T>&>(*this) = kernel_rows<T>(call, device, held);
    this->padded = padded_row(this->keys);
    this->v = view<T>(f.v);
    set_side(f.pre, f.pre_key, this->pre);
    set_side(f.post, f.post_key, this->post);
    if (f.pre.defined() || f.post.defined()) this->group = this->H;
    const auto& some_key = f.pre_key.defined() ? f.pre_key : f.post_key;
    this->rank = some_key.defined() ? some_key.size(1) / 2 : 0;
    this->row = of_type(map, T());
    this->saved = map.saved, this->traced = map.traced;
    this->number = static_cast<T>(map.number);
    this->by_head = data<T>(f.by_head);
    if (f.norm.defined())
      this->norm = {data<T>(f.norm), data<T>(f.norm) + this->H, data<T>(rest.share),
                    static_cast<T>(rest.eps)};
    this->dropout = call.dropped();
    this->coarse = rest.coarse;
    this->of_rows = data<T>(of_rows);
    set_slots();
  }

  const T* hold(const Tensor& t) {
    held.push_back(t);
    return data<T>(t);
  }
  void set_side(const Tensor& matrix, const Tensor& key, ComposeSide<T>& side) {
    side.key = hold(key_factors(key, this->padded));
    side.matrix = hold(matrices(matrix));
    if (matrix.defined()) std::copy_n(held.back().strides().begin(), 2, side.stride);
  }
  // Workers that one task each would not keep busy share examples.
  void set_slots() {
    const int64_t tasks = compose_tasks<T>(*this);
    const int64_t workers = device.is_cpu() ? at::get_num_threads() : kBusyBlocks;
    const bool busy =
        tasks >= 8 * workers || (device.is_cpu() ? tasks % workers == 0 : tasks >= workers);
    const int64_t most = (this->queries + kRowLanes - 1) / kRowLanes;
    if (!busy) this->slots = device.is_cpu() ? workers : std::min(most, workers / tasks + 1);
  }

  void run(bool back) const {
    if (!device.is_cpu()) return launch(back);
    const auto kernels = compose_kernels<T>();
    const auto work = back ? kernels.backward : kernels.forward;
    at::parallel_for(0, compose_tasks<T>(*this), 1, [&](int64_t begin, int64_t end) {
      const auto scratch = std::make_unique_for_overwrite<T[]>(kernels.scratch(*this));
      for (int64_t task = begin; task < end; ++task) work(*this, task, scratch.get());
    });
  }

 private:
  static constexpr int64_t kBusyBlocks = 256;  // of a GPU

  void launch(bool back) const {
    const RowLaunches<T> launches = of_type(*map.cuda, T());
    const c10::DeviceGuard guard(device);
    void* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
    const auto room = at::empty({launches.scratch(*this, back)}, held.front().options());
    const auto kernel = back ? launches.backward : launches.forward;
    const char* error = kernel(*this, data<T>(room), stream);
    TORCH_CHECK(!error, "attention by rows: CUDA: ", error);
  }
};

template <class T>
Tensor forward(const Factors& f, const Unlearned& rest, const Tensor& of_rows) {
  Problem<T> problem(f, rest, of_rows);
  auto out = by_token(problem.B, problem.H, problem.queries, f.v.size(3), f.q.options());
  problem.output = writable<T>(out);
  problem.run(/*back=*/false);
  return out;  // [B,H,T,e]
}

// Gradients of all Factors.
template <class T>
torch::autograd::variable_list backward(const Factors& f, const Unlearned& rest,
                                        const Tensor& of_rows, const Tensor& grad) {
  Problem<T> p(f, rest, of_rows);
  p.grad_output = view<T>(p.held.emplace_back(in_lanes(grad)));
  const auto options = f.q.options();
  const auto grad_q = by_token(p.B, p.H, p.queries, p.d, options);
  const auto grad_k = by_token(p.slots * p.B, p.H, p.keys, p.d, options).zero_();
  const auto grad_v = by_token(p.slots * p.B, p.H, p.keys, f.v.size(3), options).zero_();
  p.grad_q = writable<T>(grad_q);
  p.grad_k = writable<T>(grad_k), p.grad_v = writable<T>(grad_v);
  const auto of_matrices = [&](const Tensor& m) {
    return m.defined() ? at::empty({p.B, p.queries, p.H, p.H}, options) : Tensor();
  };
  const auto of_factors = [&](const Tensor& key) {
    return key.defined() ? at::zeros({p.slots, p.B, 2 * p.rank + 1, p.H, p.padded}, options)
                         : Tensor();
  };
  const auto pre = of_matrices(f.pre), post = of_matrices(f.post);
  const auto pre_key = of_factors(f.pre_key), post_key = of_factors(f.post_key);
  p.pre.grad_matrix = data<T>(pre), p.pre.grad_key = data<T>(pre_key);
  p.post.grad_matrix = data<T>(post), p.post.grad_key = data<T>(post_key);
  const auto by_head = f.by_head.defined() ? at::zeros({p.slots, p.B, p.H}, options) : Tensor();
  p.grad_by_head = data<T>(by_head);
  const auto norm = f.norm.defined() ? at::empty({p.B, p.queries, 2, p.H}, options) : Tensor();
  p.norm.grad = data<T>(norm);
  p.run(/*back=*/true);
  const auto total = [](const Tensor& of_slots) {
    return of_slots.size(0) == 1 ? of_slots[0] : of_slots.sum(0);
  };
  const auto of_keys = [&](const Tensor& grads) {  // [slots B,H,S,.] -> [B,H,S,.]
    return p.slots == 1 ? grads : grads.unflatten(0, {p.slots, p.B}).sum(0);
  };
  const auto factors = [&](const Tensor& of_slots) {
    if (!of_slots.defined()) return Tensor();
    return total(of_slots).narrow(3, 0, p.keys).transpose(2, 3);  // [B,2R+1,S,H]
  };
  return {grad_q,
          of_keys(grad_k),
          of_keys(grad_v),
          pre,
          factors(pre_key),
          post,
          factors(post_key),
          by_head.defined() ? total(by_head).sum(0) : by_head,
          norm.defined() ? norm.sum(at::IntArrayRef({0, 1})) : norm};
}

class ByRows : public torch::autograd::Function<ByRows> {
 public:
  // given: all Factors; an empty one stands for one that is undefined, which torch does not take
  // in a list.
  static Tensor forward(torch::autograd::AutogradContext* ctx, const at::TensorList& given,
                        const Unlearned& rest) {
    const auto f = factors(given);
    const auto of_rows =
        at::empty({f.q.size(0), f.q.size(1), f.q.size(2), rest.map.saved}, f.q.options());
    auto saved = given.vec();
    saved.push_back(of_rows);
    ctx->save_for_backward(std::move(saved));
    hold(ctx, rest);
    return f.q.scalar_type() == at::kFloat ? headlab::forward<float>(f, rest, of_rows)
                                           : headlab::forward<double>(f, rest, of_rows);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "composed attention has second derivatives on backend eager only");
    const auto saved = ctx->get_saved_variables();
    const auto f = factors(saved);
    const auto& rest = held<Unlearned>(ctx);
    auto all = f.q.scalar_type() == at::kFloat
                   ? headlab::backward<float>(f, rest, saved.back(), grads[0])
                   : headlab::backward<double>(f, rest, saved.back(), grads[0]);
    all.emplace_back();  // of the rest
    return all;
  }

 private:
  static Factors factors(at::TensorList given) {
    Factors f;
    const auto all = f.all();
    for (size_t i = 0; i < all.size(); ++i)
      if (given[i].numel() > 0) *all[i] = given[i];
    return f;
  }
};

}  // namespace

bool rows_serve(const AttentionCall& call) {
  const auto learns = [](const Tensor& t) { return t.defined() && t.requires_grad(); };
  if (call.uniform.defined() || call.q.numel() == 0 || call.k.numel() == 0 || learns(call.bias) ||
      learns(call.distance_bias) || call.pre.adds() || call.post.bias().defined())
    return false;
  // A norm behind the weights is of those that their row was divided by.
  if (call.post.norm().weight.defined() &&
      call.map->row_divisors(call, call.q.size(2), call.q.options()).defined())
    return false;
  const auto map = call.map->row_map(call, call.k.size(2));
  return map && (call.q.is_cpu() || (call.q.is_cuda() && map->cuda));
}

AttendedRows attend_by_rows(const AttentionCall& call) {
  const int64_t B = call.q.size(0), H = call.q.size(1), T = call.q.size(2);
  // Everything is of one type, which sums are made in.
  const auto type = call.score_type();
  const auto wide = [&](const Tensor& t) { return t.defined() ? t.to(type) : t; };
  const auto matrix = [&](const Composition& c) {
    return c.is_identity() ? Tensor() : wide(c.matrix()).expand({B, T, H, H});
  };
  Factors f{in_lanes(wide(call.q) * call.scale),
            in_lanes(repeat_kv(wide(call.k), call.kv_map, H)),
            in_lanes(repeat_kv(wide(call.v), call.kv_map, H)),
            matrix(call.pre),
            wide(with_gates(call.pre.key())),
            matrix(call.post),
            wide(with_gates(call.post.key())),
            {},
            {}};
  Unlearned rest{call.without_inputs(), {}};
  rest.call.scale = 1, rest.call.kv_map = Tensor();
  rest.coarse = rounds(call.q) || at::globalContext().allowTF32CuBLAS();
  rest.map = *call.map->row_map(call, call.k.size(2));
  if (const auto numbers = call.map->row_numbers(); numbers.defined())
    f.by_head = wide(numbers).expand({H}).contiguous();
  if (const auto& norm = call.post.norm(); norm.weight.defined()) {
    f.norm = at::stack({wide(norm.weight), wide(norm.bias)});
    rest.share = wide(norm.share).contiguous(), rest.eps = norm.eps;
  }
  if (const auto offsets = call.map->offsets(call, call.k.size(2), f.q.options());
      offsets.defined())
    rest.call.bias = rest.call.bias.defined() ? rest.call.bias + offsets : offsets;
  std::vector<Tensor> given;
  for (const auto* t : f.all()) given.push_back(t->defined() ? *t : call.q.new_empty({0}, type));
  const auto out = ByRows::apply(at::TensorList(given), rest).narrow(3, 0, call.v.size(3));
  // A row is divided as a whole, so that this can be done last.
  const auto divisors = call.map->row_divisors(call, T, out.options());
  return {(divisors.defined() ? out / divisors.unsqueeze(-1) : out).to(call.v.scalar_type()), {}};
}

}  // namespace headlab
