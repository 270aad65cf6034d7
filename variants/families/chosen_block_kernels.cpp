#include "variants/families/chosen_block_kernels.h"

#include <ATen/Parallel.h>

#include <memory>
#include <numeric>
#include <vector>

#include "core/attention/attend.h"
#include "core/attention/paths/held.h"
#include "core/attention/precision.h"
#include "core/torch.h"
#include "variants/families/chosen_block_rows.h"

namespace headlab {
namespace {

// What a pass needs beside q, k and v.
struct Lists {
  Tensor blocks, places, kv_head;  // [B,H,T,m], [B,T], [H] int64, dense
  int64_t block;
  double scale;
  int64_t back;
};

int64_t wide(int64_t width) { return (width + kRowLanes - 1) / kRowLanes * kRowLanes; }

// [..,width] -> [..,wide], dense.
Tensor widened_rows(const Tensor& x) {
  return at::constant_pad_nd(x, {0, wide(x.size(-1)) - x.size(-1)}).contiguous();
}

// Keys or values [B,Hkv,S,d] as blocks [B,Hkv,N,b,wide]; the last one is filled up with zeros.
Tensor in_blocks(const Tensor& kv, int64_t b) {
  const int64_t S = kv.size(2), N = (S + b - 1) / b, d = kv.size(3);
  return at::constant_pad_nd(kv, {0, wide(d) - d, 0, N * b - S}).unflatten(2, {N, b}).contiguous();
}

// q, k and v as the kernels take them.
struct Laid {
  Tensor q, k, v;  // [B,H,T,wide], [B,Hkv,N,b,wide]

  Laid(const Tensor& queries, const Tensor& keys, const Tensor& values, int64_t b)
      : q(widened_rows(queries)), k(in_blocks(keys, b)), v(in_blocks(values, b)) {}
};

// The lists the other way: the queries that see each block, ascending.
struct Seeing {
  std::vector<int64_t> starts, queries;

  Seeing(const Lists& lists, int64_t N)
      : starts(lists.blocks.size(0) * lists.blocks.size(1) * N + 1) {
    each(lists, N, [&](int64_t list, int64_t) { ++starts[list + 1]; });
    std::partial_sum(starts.begin(), starts.end(), starts.begin());
    queries.resize(starts.back());
    auto next = starts;
    each(lists, N, [&](int64_t list, int64_t i) { queries[next[list]++] = i; });
  }

 private:
  template <class Work>
  static void each(const Lists& lists, int64_t N, const Work& work) {
    const int64_t H = lists.blocks.size(1), T = lists.blocks.size(2), m = lists.blocks.size(3);
    const auto* chosen = lists.blocks.const_data_ptr<int64_t>();
    const auto* place = lists.places.const_data_ptr<int64_t>();
    for (int64_t head = 0; head < lists.blocks.size(0) * H; ++head)
      for (int64_t i = 0; i < T; ++i, chosen += m)
        for (int64_t s = 0; s < m; ++s)
          if (chosen[s] >= 0 && chosen[s] * lists.block <= place[head / H * T + i])
            work(head * N + chosen[s], i);
  }
};

template <class T>
ChosenBlockRows<T> problem(const Laid& laid, const Lists& lists, const Seeing& seeing) {
  ChosenBlockRows<T> p{};
  p.B = laid.q.size(0), p.H = laid.q.size(1), p.queries = laid.q.size(2);
  p.kv_heads = laid.k.size(1), p.blocks = laid.k.size(2), p.block = lists.block;
  p.wide_d = laid.k.size(4), p.wide_e = laid.v.size(4);
  p.scale = lists.scale, p.back = lists.back;
  p.kv_head = lists.kv_head.const_data_ptr<int64_t>();
  p.place = lists.places.const_data_ptr<int64_t>();
  p.starts = seeing.starts.data(), p.seeing = seeing.queries.data();
  p.q = laid.q.const_data_ptr<T>();
  p.k = laid.k.const_data_ptr<T>(), p.v = laid.v.const_data_ptr<T>();
  return p;
}

template <class T>
void run(const ChosenBlockRows<T>& p, int64_t tasks,
         void (*work)(const ChosenBlockRows<T>&, int64_t, T*)) {
  at::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    const auto room = std::make_unique_for_overwrite<T[]>(chosen_block_room(p));
    for (int64_t task = begin; task < end; ++task) work(p, task, room.get());
  });
}

// out [B,H,T,wide] and lse [B,H,T].
template <class T>
AttendedRows forward(const Laid& laid, const Lists& lists) {
  const Seeing seeing(lists, laid.k.size(2));
  auto p = problem<T>(laid, lists, seeing);
  AttendedRows rows{at::empty({p.B, p.H, p.queries, p.wide_e}, laid.q.options()),
                    at::empty({p.B, p.H, p.queries}, laid.q.options())};
  p.out = rows.out.template data_ptr<T>(), p.lse = rows.lse.template data_ptr<T>();
  run(p, p.B * p.H, of_type(HEADLAB_OF_ISA(chosen_block_kernels), T()).forward);
  return rows;
}

struct Gradients {
  Tensor q, k, v;  // as in Laid
};

template <class T>
Gradients backward(const Laid& laid, const Lists& lists, const AttendedRows& rows,
                   const Tensor& for_out) {
  const Seeing seeing(lists, laid.k.size(2));
  auto p = problem<T>(laid, lists, seeing);
  const Gradients all{at::zeros_like(laid.q), at::zeros_like(laid.k), at::zeros_like(laid.v)};
  p.out = rows.out.template data_ptr<T>(), p.lse = rows.lse.template data_ptr<T>();
  const auto drop = (for_out * rows.out).sum(-1);  // [B,H,T]
  p.drop = drop.template const_data_ptr<T>();
  p.grad_out = for_out.template const_data_ptr<T>();
  p.grad_q = all.q.template data_ptr<T>(), p.grad_k = all.k.template data_ptr<T>(),
  p.grad_v = all.v.template data_ptr<T>();
  run(p, p.B * p.kv_heads, of_type(HEADLAB_OF_ISA(chosen_block_kernels), T()).backward);
  return all;
}

class AttendToLists : public torch::autograd::Function<AttendToLists> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k,
                        const Tensor& v, const Lists& lists) {
    const Laid laid(q, k, v, lists.block);
    const auto rows = q.scalar_type() == at::kFloat ? headlab::forward<float>(laid, lists)
                                                    : headlab::forward<double>(laid, lists);
    ctx->save_for_backward({q, k, v, rows.out, rows.lse});
    hold(ctx, lists);
    return rows.out.narrow(3, 0, v.size(3)).contiguous();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "chosen blocks have second derivatives on backend eager only");
    const auto saved = ctx->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2];
    const auto& lists = held<Lists>(ctx);
    const Laid laid(q, k, v, lists.block);
    const AttendedRows rows{saved[3], saved[4]};
    const auto g = widened_rows(grads[0]);
    const auto all = g.scalar_type() == at::kFloat
                         ? headlab::backward<float>(laid, lists, rows, g)
                         : headlab::backward<double>(laid, lists, rows, g);
    const auto of_keys = [](const Tensor& t, const Tensor& kv) {
      return t.flatten(2, 3).narrow(2, 0, kv.size(2)).narrow(3, 0, kv.size(3));
    };
    return {all.q.narrow(3, 0, q.size(3)), of_keys(all.k, k), of_keys(all.v, v), Tensor()};
  }
};

}  // namespace

Tensor attend_to_lists(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& blocks,
                       const Tensor& places, int64_t block, const Tensor& kv_map, double scale,
                       int64_t back) {
  const WithoutAutocast exact;
  const int64_t B = q.size(0), H = q.size(1), T = q.size(2);
  const auto type = at_least_float(q);
  const Lists lists{blocks.expand({B, H, T, -1}).contiguous(),
                    places.expand({B, T}).contiguous(),
                    kv_heads(kv_map, H, k.size(1), q.device()).contiguous(),
                    block,
                    scale,
                    back};
  return AttendToLists::apply(q.to(type), k.to(type), v.to(type), lists).to(v.scalar_type());
}

}  // namespace headlab
