// The ways to compute one attention call, and which of them is taken.
#include <algorithm>
#include <array>
#include <limits>

#include "core/attention/attend.h"
#include "core/attention/compose.h"
#include "core/attention/map_statistics.h"
#include "core/attention/observer.h"
#include "core/attention/precision.h"
#include "core/errors.h"
#include "core/kernels/attention_rows.h"
#include "core/torch.h"

namespace headlab {
namespace {

// A call as a path reads it; the queries of uniform heads are 0 already.
struct Asked {
  const Tensor &q, &k, &v;
  const HeadCall& call;
  double scale;
  bool wants_lse;
};

struct Path {
  Backend backend;
  const char* name;
  bool has_lse;
  bool (*serves)(const Asked&);  // gives the numbers of eager, up to rounding
  bool (*pays)(const Asked&);    // is taken where no path is asked for
  AttendedRows (*run)(const Asked&);
  const char* limits;  // in words: what it does not serve
};

// With the whole map in memory: everything.
AttendedRows eager(const Asked& asked) {
  const auto& [q, k, v, call, scale, wants_lse] = asked;
  const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
  const auto z = scores(q, k, call, scale);
  return {weighted_values(masked_softmax(z, allowed), v, call),
          wants_lse ? log_sum_exp(z, allowed) : Tensor()};
}

// It takes a bias in the type of its products, and half types are too coarse for one.
bool sdpa_serves(const Asked& asked) {
  const auto& call = asked.call;
  const bool bias = !call.bias.defined() || (!call.bias.requires_grad() && !rounds(asked.q));
  return call.dropout == 0 && !call.position_bias && bias && asked.q.size(1) > 0;
}

// Torch's fused attention spares memory and time, but where narrow values are widened to the keys
// it multiplies zeros: then a map that is no larger than the queries is held, which takes half the
// time (measured with queries four times as wide as values, at T = 64 and 256).
bool sdpa_pays(const Asked& asked) {
  return asked.q.size(-1) < 2 * asked.v.size(-1) || asked.k.size(2) > asked.q.size(-1);
}

// torch's fused kernels of a GPU load 16 bytes at once and look only at the width of a head: rows
// that begin elsewhere, as views of overlapping windows do, give wrong numbers or no kernel.
Tensor aligned(const Tensor& t) {
  const int64_t step = 16 / t.element_size();
  if (!t.is_cuda() || t.size(-1) % step != 0)
    return t;  // they do not take other widths as they are
  const auto strides = t.strides();
  const bool all = t.storage_offset() % step == 0 && strides.back() == 1 &&
                   std::all_of(strides.begin(), strides.end() - 1,
                               [&](int64_t stride) { return stride % step == 0; });
  return all ? t : t.clone(at::MemoryFormat::Contiguous);
}

// torch's fused attention. It wants one dense mask and knows no row without keys.
Tensor sdpa(const Tensor& queries, const Tensor& k, const Tensor& v, const HeadCall& call,
            double scale) {
  const int64_t T = queries.size(2), S = k.size(2), H = queries.size(1);
  const auto q = aligned(queries), keys = aligned(repeat_kv(k, call, H)),
             values = aligned(repeat_kv(v, call, H));
  const auto& m = call.mask;
  const bool plain = m.window == 0 && !m.key_length.defined() && !m.allowed.defined();
  if (plain && !call.bias.defined() && (!m.causal || T == S))
    return at::scaled_dot_product_attention(q, keys, values, {}, 0, m.causal && T > 1, scale);
  auto allowed = allowed_keys(m, T, S, q.device());
  Tensor seen;  // rows that may attend to something
  if (allowed.defined() && (m.key_length.defined() || m.allowed.defined())) {
    seen = allowed.any(-1, true);
    allowed = allowed | seen.logical_not();
  }
  auto mask = allowed;
  if (call.bias.defined()) {
    mask = call.bias.to(q.scalar_type());
    if (allowed.defined())
      mask = mask.masked_fill(allowed.logical_not(), -std::numeric_limits<float>::infinity());
  }
  if (mask.defined()) {
    while (mask.dim() < 4) mask = mask.unsqueeze(0);
    mask = mask.expand({mask.size(0), mask.size(1), T, S});
  }
  const auto given = mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
  auto out = at::scaled_dot_product_attention(q, keys, values, given, 0, false, scale);
  return seen.defined() ? out.masked_fill(seen.logical_not(), 0) : out;
}

AttendedRows sdpa_rows(const Asked& asked) {
  // Without the scores in memory torch wants one width.
  const int64_t e = asked.v.size(-1), width = std::max(asked.q.size(-1), e);
  return {sdpa(widen(asked.q, width), widen(asked.k, width), widen(asked.v, width), asked.call,
               asked.scale)
              .narrow(-1, 0, e),
          Tensor()};
}

bool flash_serves_call(const Asked& asked) {
  const auto& call = asked.call;
  return call.dropout == 0 && !call.mask.allowed.defined() && !call.bias.defined() &&
         flash_serves(asked.q, asked.k, asked.v);
}

// Biases by distance have no other path without maps; and rows that see but a part of the keys are
// computed without the others, which torch spares from 512 keys on (measured from T = 64 to 1024).
bool flash_pays(const Asked& asked) {
  constexpr int64_t kFewestRows = 256;
  const auto& mask = asked.call.mask;
  return asked.call.position_bias ||
         ((mask.causal || mask.window > 0) && asked.q.size(2) >= kFewestRows);
}

AttendedRows flash(const Asked& asked) {
  const auto& [q, k, v, call, scale, wants_lse] = asked;
  const int64_t H = q.size(1);
  FlashScope scope;
  scope.reach = key_reach(call.mask.causal, call.mask.window);
  scope.key_length = call.mask.key_length;
  if (call.position_bias)
    scope.distance_bias = biases_by_distance(call, q.size(2), k.size(2)).to(q.scalar_type());
  return flash_attend(q, repeat_kv(k, call, H), repeat_kv(v, call, H), scope, scale);
}

// torch's fused kernels take a row of scores that are no numbers for one without keys, and give 0.
AttendedRows with_lost_rows(const Asked& asked, AttendedRows rows) {
  const auto& [q, k, v, call, scale, wants_lse] = asked;
  if (!q.is_cpu() || (sums_are_finite(q) && sums_are_finite(k))) return rows;
  Tensor lost;  // [B,H,T,1]
  {
    at::NoGradGuard no_grad;
    const auto z = scores(q, k, call, scale);
    const auto allowed = allowed_keys(call.mask, q.size(2), k.size(2), q.device());
    lost = both_allowed(z.isnan() | z.isposinf(), allowed).any(-1, /*keepdim=*/true);
  }
  constexpr double kLost = std::numeric_limits<double>::quiet_NaN();
  rows.out = rows.out.masked_fill(lost, kLost);
  if (rows.lse.defined()) rows.lse = rows.lse.masked_fill(lost.squeeze(-1), kLost);
  return rows;
}

bool always(const Asked&) { return true; }

// The first that serves and pays is taken.
constexpr std::array<Path, 3> kPaths{
    {{Backend::kFlash, "flash", true, flash_serves_call, flash_pays, flash,
      "not with dropout, a dense mask or bias, half types, or on a GPU"},
     {Backend::kSdpa, "sdpa", false, sdpa_serves, sdpa_pays, sdpa_rows,
      "not with dropout, a bias by distance, a bias that learns or one in half precision"},
     {Backend::kEager, "eager", true, always, always, eager, ""}}};

AttendedRows attended(const Tensor& queries, const Tensor& k, const Tensor& v, const HeadCall& call,
                      double scale, bool wants_lse) {
  const auto q = uniform_queries(queries, call);  // on every path; biases are equal already
  const Asked asked{q, k, v, call, scale, wants_lse};
  for (const auto& path : kPaths) {
    const bool forced = call.backend == path.backend;
    if (!forced && call.backend != Backend::kAuto) continue;
    const auto refuse = [&](const char* limits) {
      throw BackendError(std::string("backend ") + path.name + ": " + limits +
                         "; auto or eager serves");
    };
    if (forced && !path.serves(asked)) refuse(path.limits);
    if (wants_lse && !path.has_lse) {
      if (forced) refuse("gives no log-sum-exp of a row's scores, which these heads need");
      continue;
    }
    // Of the log-sum-exp's paths the one without the map is taken wherever it serves.
    if (!forced && !(path.serves(asked) && (wants_lse || path.pays(asked)))) continue;
    auto rows = path.run(asked);
    if (path.backend != Backend::kEager) rows = with_lost_rows(asked, rows);
    if (call.observer) call.observer->softmax(q, k, v, rows.out, call, scale);
    return rows;
  }
  C10_THROW_ERROR(Error, "no path of attention serves");
}

HeadCall by_softmax(const HeadCall& call) {
  auto plain = call;
  plain.map = plain_softmax();
  return plain;
}

// What a sink takes follows from the log-sum-exp, so that every path that has it serves. Uniform
// heads have none.
Tensor attend_with_sink(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                        double scale, const Tensor& of_heads) {
  const auto rows = attended(q, k, v, by_softmax(call.unobserved()), scale, /*wants_lse=*/true);
  auto sink = of_heads.to(rows.lse.options());
  if (call.uniform.defined())
    sink = sink.masked_fill(call.uniform, -std::numeric_limits<double>::infinity());
  const auto share = share_beside_sink(rows.lse, sink).unsqueeze(-1);  // [B,H,T,1]
  return (widened(rows.out) * share).to(rows.out.scalar_type());       // [B,H,T,e]
}

Tensor attend_mapped(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                     double scale) {
  const auto* softmax = call.map->as_softmax();
  if (!softmax) return composed_attend(q, k, v, {}, {}, call.unobserved(), scale).out;
  if (softmax->sink().defined()) return attend_with_sink(q, k, v, call, scale, softmax->sink());
  return attended(q, k, v, by_softmax(call.unobserved()), scale, /*wants_lse=*/false).out;
}

}  // namespace

void observe_attention(const Attended& found, const HeadCall& call, double scale) {
  const auto& [queries, k, v, out, counted] = found;
  const auto q = uniform_queries(queries, call);
  if (call.map->is_softmax()) return call.observer->softmax(q, k, v, out, call, scale, counted);
  if (!call.observer->wants_maps()) return;
  at::NoGradGuard no_grad;
  const auto z = scores(q, k, call, scale);
  const auto p = weights_of(z, allowed_keys(call.mask, q.size(2), k.size(2), q.device()), call);
  observe_weights({.scores = z, .p = p, .a = p, .v = v, .out = out, .counted = counted}, call);
}

std::vector<std::string> attend_path_names() {
  std::vector<std::string> names;
  for (const auto& path : kPaths) names.emplace_back(path.name);
  return names;
}

Backend backend_named(const std::string& name) {
  for (const auto& path : kPaths)
    if (name == path.name) return path.backend;
  TORCH_CHECK(name == "auto", "no path of attention is called '", name, "'");
  return Backend::kAuto;
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
              double scale) {
  if (call.map->is_softmax()) return attended(q, k, v, call, scale, /*wants_lse=*/false).out;
  const auto out = attend_mapped(q, k, v, call, scale);  // [B,H,T,e]
  if (call.observer) observe_attention({q, k, v, out}, call, scale);
  return out;
}

AttendedRows attend_lse(const Tensor& q, const Tensor& k, const Tensor& v, const HeadCall& call,
                        double scale) {
  return attended(q, k, v, by_softmax(call), scale, /*wants_lse=*/true);
}

}  // namespace headlab
