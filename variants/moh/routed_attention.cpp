#include "variants/moh/routed_attention.h"

#include "core/attention/call/observer.h"
#include "core/attention/paths/chosen_paths.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Of the shared heads everything, of the others the chosen rows.
struct Parts {
  Tensor shared, chosen;  // [B,hs,T,d], [N,d]
};

Parts queries(const RoutedHeads& h, const Tensor& x, const Tensor& all_queries,
              const ChosenRows& rows, const HeadCall& call) {
  const int64_t B = x.size(0), T = x.size(1), D = x.size(2), hs = h.shared, routed = h.heads - hs;
  Parts q;
  if (all_queries.defined()) {
    q = {all_queries.slice(1, 0, hs), rows.pack(all_queries.slice(1, hs))};
  } else {
    const int64_t d = h.q->weight.size(0) / h.heads;
    const auto& [weight, bias] = std::tie(h.q->weight, h.q->bias);
    const auto part = [&](const Tensor& t, int64_t begin, int64_t end) {
      return t.defined() ? t.slice(0, begin * d, end * d) : t;
    };
    const auto of_routed = part(bias, hs, h.heads);
    q.shared =
        project(x, part(weight, 0, hs), part(bias, 0, hs)).view({B, T, hs, d}).transpose(1, 2);
    q.chosen = project_rows(x, part(weight, hs, h.heads).view({routed, d, D}),
                            of_routed.defined() ? of_routed.view({routed, d}) : of_routed, rows);
  }
  const auto places = call.positions.expand({B, T}).reshape(-1).index_select(0, rows.token);
  return {rotate(q.shared, call, call.positions),
          rotate(q.chosen.unsqueeze(0).unsqueeze(0), call, places).flatten(0, 2)};
}

Tensor output(const RoutedHeads& h, const Parts& heads, const ChosenRows& rows,
              const Tensor& gates) {
  const int64_t B = rows.B, T = rows.T, hs = h.shared, d = heads.chosen.size(1);
  auto g = gates.dim() == 4 ? gates : gates.unsqueeze(3);
  g = g.expand({B, h.heads, T, -1}).to(heads.chosen.scalar_type());
  const auto shared = (heads.shared * g.slice(1, 0, hs)).transpose(1, 2).reshape({B, T, hs * d});
  const auto chosen = heads.chosen * rows.pack(g.slice(1, hs));                   // [N,d]
  const auto of_routed = h.o->weight.slice(1, hs * d);                            // [D,(H-hs) d]
  const auto by_head = of_routed.view({-1, h.heads - hs, d}).permute({1, 2, 0});  // [H-hs,d,D]
  return project(shared, h.o->weight.slice(1, 0, hs * d), h.o->bias) +
         sum_rows(chosen, by_head, rows);
}

}  // namespace

Tensor attend_routed(const RoutedHeads& h, const Tensor& x, const Tensor& all_queries,
                     const Tensor& k, const Tensor& v, const Tensor& gates, const HeadCall& call) {
  const int64_t H = h.heads, hs = h.shared;
  const ChosenRows rows((gates != 0).slice(1, hs));
  const auto keys = repeat_kv(k, call.kv_map, H),
             values = repeat_kv(v, call.kv_map, H);  // [B,H,S,d]
  const auto q = queries(h, x, all_queries, rows, call);
  // Dropout that is not that of the shared heads once more.
  const auto own = call.of_heads(hs, H - hs, H).with_seed(1);
  const Parts heads{
      attend(q.shared, keys.slice(1, 0, hs), values.slice(1, 0, hs), call.of_heads(0, hs, H),
             h.scale),
      attend_rows(q.chosen, keys.slice(1, hs), values.slice(1, hs), rows, own, h.scale)};
  const auto weighed = call.with_gates(gates);
  const auto all = [&] { return at::cat({heads.shared, rows.unpack(heads.chosen)}, 1); };
  if (call.observer) {
    at::NoGradGuard no_grad;
    const auto made =
        all_queries.defined() ? all_queries : split_heads(project(x, h.q->weight, h.q->bias), H);
    observe_attention({rotate(made, call, call.positions), k, v, call, h.scale}, all(), call,
                      gates != 0);
    merge_heads(all(), weighed);
  }
  // An offset is said where nobody is heard, too.
  if (call.offset.defined())
    return project(merge_heads(all(), weighed.unobserved()), h.o->weight, h.o->bias);
  return output(h, heads, rows, weighed.gates);
}

}  // namespace headlab
