#include "core/attention/paths/paths.h"

#include <algorithm>
#include <limits>

#include "core/attention/attend.h"
#include "core/attention/paths/chosen_paths.h"
#include "core/attention/paths/flash.h"
#include "core/attention/paths/thresholds.h"
#include "core/attention/precision.h"
#include "core/errors.h"
#include "core/torch.h"

namespace headlab {
namespace {

bool always(const AttentionCall&) { return true; }
bool never(const AttentionCall&) { return false; }

// With the whole map in memory: everything.
AttendedRows eager(const AttentionCall& call) {
  const auto allowed = call.allowed_keys();
  const auto z = call.scores();  // [B,H,T,S]
  const auto a = composed_weights(weights_of(z, allowed, call), call.post, allowed);
  return {weighted_values(a, call), call.wants_lse ? log_sum_exp(z, allowed) : Tensor()};
}

bool flash_serves_call(const AttentionCall& call) {
  return call.is_plain() && call.dropout == 0 && !call.bias.defined() && !call.allowed.defined() &&
         flash_serves(call.q, call.k, call.v);
}

// Values that are wider than the queries: the other paths widen the queries.
bool has_wide_values(const AttentionCall& call) {
  return call.v.size(-1) > call.q.size(-1) && rows_serve(call);
}

// Biases by distance and the log-sum-exp have no other path without maps.
bool flash_pays(const AttentionCall& call) {
  const bool part = call.causal || call.reach.back < kUnlimited;  // of the keys is seen
  return call.wants_lse || call.distance_bias.defined() ||
         (part && call.q.size(2) >= threshold::kFewestFlashQueries && !has_wide_values(call));
}

// It takes a bias in the type of its products, and half types are too coarse for one.
bool sdpa_serves(const AttentionCall& call) {
  const bool bias = !call.bias.defined() || (!call.bias.requires_grad() && !rounds(call.q));
  return call.is_plain() && call.dropout == 0 && !call.distance_bias.defined() && bias &&
         call.q.size(1) > 0;
}

// Torch's fused attention spares memory and time, but not where narrow values are widened to the
// keys and the map is small.
bool sdpa_pays(const AttentionCall& call) {
  return !has_wide_values(call) &&
         (call.q.size(-1) < threshold::kWiderThanValues * call.v.size(-1) ||
          call.k.size(2) > call.q.size(-1));
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

// What torch's fused attention takes: one dense mask or bias, in which every row sees a key.
struct SdpaMask {
  Tensor mask;  // bool or additive [B or 1,H or 1,T,S]; undefined: every key is seen
  Tensor seen;  // rows that may attend to something; undefined: all
};

SdpaMask sdpa_mask(const AttentionCall& call) {
  auto allowed = call.allowed_keys();
  SdpaMask m;
  if (allowed.defined() && (call.key_length.defined() || call.allowed.defined())) {
    m.seen = allowed.any(-1, /*keepdim=*/true);
    allowed = allowed | m.seen.logical_not();
  }
  m.mask = allowed;
  if (call.bias.defined()) {
    m.mask = call.bias.to(call.q.scalar_type());
    if (allowed.defined()) m.mask = m.mask.masked_fill(allowed.logical_not(), kHiddenScore);
  }
  if (!m.mask.defined()) return m;
  while (m.mask.dim() < 4) m.mask = m.mask.unsqueeze(0);
  m.mask = m.mask.expand({m.mask.size(0), m.mask.size(1), call.q.size(2), call.k.size(2)});
  return m;
}

AttendedRows sdpa(const AttentionCall& call) {
  // Without the scores in memory torch wants one width.
  const int64_t T = call.q.size(2), S = call.k.size(2), e = call.v.size(-1),
                width = std::max(call.q.size(-1), e);
  const auto of_heads = [&](const Tensor& kv) {
    return aligned(repeat_kv(widen(kv, width), call.kv_map, call.q.size(1)));
  };
  // Torch's kernels may hide keys before they multiply, where a factor of 0 or less would show
  // them.
  const bool scales = call.scale > 0;
  const double factor = scales ? call.scale : 1;
  const auto q = aligned(widen(scales ? call.q : call.q * call.scale, width)), k = of_heads(call.k),
             v = of_heads(call.v);
  const auto attend = [&](const Tensor& mask, bool causal) {
    const auto given = mask.defined() ? std::optional<Tensor>(mask) : std::nullopt;
    return at::scaled_dot_product_attention(q, k, v, given, 0, causal, factor).narrow(-1, 0, e);
  };
  const bool window = call.reach.back < kUnlimited;
  const bool plain =
      !window && !call.key_length.defined() && !call.allowed.defined() && !call.bias.defined();
  if (plain && (!call.causal || T == S)) return {attend({}, call.causal && T > 1), {}};
  const auto m = sdpa_mask(call);
  const auto out = attend(m.mask, false);
  return {m.seen.defined() ? out.masked_fill(m.seen.logical_not(), 0) : out, {}};
}

// torch's fused kernels take a row of scores that are no numbers for one without keys, and give 0.
AttendedRows with_lost_rows(const AttentionCall& call, AttendedRows rows) {
  if (!call.q.is_cpu() || (sums_are_finite(call.q) && sums_are_finite(call.k))) return rows;
  Tensor lost;  // [B,H,T,1]
  {
    at::NoGradGuard no_grad;
    const auto z = call.scores();
    lost = both_allowed(z.isnan() | z.isposinf(), call.allowed_keys()).any(-1, /*keepdim=*/true);
  }
  constexpr double kLost = std::numeric_limits<double>::quiet_NaN();
  rows.out = rows.out.masked_fill(lost, kLost);
  if (rows.lse.defined()) rows.lse = rows.lse.masked_fill(lost.squeeze(-1), kLost);
  return rows;
}

// Composed heads, maps other than the softmax and dropout have no other path without maps. On a GPU
// nobody has measured it: there it is taken by name alone.
bool rows_pay_call(const AttentionCall& call) {
  return call.q.is_cpu() && (!call.is_plain() || call.dropout > 0 || has_wide_values(call));
}

template <AttendedRows (*run)(const AttentionCall&)>
AttendedRows fused(const AttentionCall& call) {
  return with_lost_rows(call, run(call));
}

const Path& path_of(const AttentionCall& call) {
  for (const auto& path : attention_paths()) {
    if (path.chosen != (call.rows != nullptr)) continue;
    const bool forced = call.backend == path.backend;
    if (!forced && call.backend != Backend::kAuto) continue;
    const bool serves = path.serves(call), has_lse = path.has_lse || !call.wants_lse;
    if (serves && has_lse && (forced || path.pays(call))) return path;
    if (forced && !serves && !path.maps && !call.is_plain())
      require_maps(call.backend,
                   call.is_composed() ? "heads that are composed" : "maps other than the softmax");
    if (forced)
      throw BackendError(std::string("backend ") + path.name + ": " +
                         (serves ? "gives no log-sum-exp of a row's scores, which these heads need"
                                 : path.limits) +
                         "; auto or eager serves");
  }
  C10_THROW_ERROR(Error, "no path of attention serves");
}

}  // namespace

const std::vector<Path>& attention_paths() {
  static const std::vector<Path> table{
      {Backend::kFlash, "flash", "cpu", false, false, true, flash_serves_call, flash_pays,
       fused<flash_attend>, "not with dropout, a dense mask or bias, half types, or on a GPU"},
      {Backend::kSdpa, "sdpa", "cpu, cuda", false, false, false, sdpa_serves, sdpa_pays,
       fused<sdpa>,
       "not with dropout, a bias by distance, a bias that learns or one in half precision"},
      {Backend::kRows, "rows", "cpu, cuda", false, true, false, rows_serve, rows_pay_call,
       attend_by_rows,
       "not with uniform heads, biases that learn or stand behind a composition, or a map that has "
       "no kernel for the device"},
      {Backend::kEager, "eager", "cpu, cuda", false, true, true, always, always, eager, ""},
      {Backend::kFlash, "flash", "cpu", true, false, false, chosen_flash_serves, always,
       chosen_flash, "of rows that heads choose not with dropout, a mask or bias, or on a GPU"},
      {Backend::kSdpa, "sdpa", "cpu, cuda", true, true, false, always, never, chosen_lists, ""},
      {Backend::kRows, "rows", "cpu", true, true, false, always, never, chosen_lists, ""},
      {Backend::kEager, "eager", "cpu, cuda", true, true, false, always, always, chosen_lists, ""},
  };
  return table;
}

std::vector<std::string> attend_path_names() {
  std::vector<std::string> names;
  for (const auto& path : attention_paths())
    if (!path.chosen) names.emplace_back(path.name);
  return names;
}

std::vector<std::string> backend_names() {
  auto names = attend_path_names();
  names.insert(names.begin(), "auto");
  return names;
}

Backend backend_named(const std::string& name) {
  for (const auto& path : attention_paths())
    if (name == path.name) return path.backend;
  TORCH_CHECK(name == "auto", "no path of attention is called '", name, "'");
  return Backend::kAuto;
}

AttendedRows attended(const AttentionCall& call) {
  const auto* softmax = call.map->as_softmax();
  const bool sink = softmax && softmax->sink().defined();
  const bool with_sink =
      sink && (call.backend == Backend::kRows ||
               (call.backend == Backend::kAuto && call.dropout > 0 && rows_serve(call)));
  if (call.rows || call.is_composed() || !softmax || with_sink) return path_of(call).run(call);
  auto own = call;
  own.map = plain_softmax();
  if (!sink) return path_of(own).run(own);
  // What a sink takes follows from the log-sum-exp, so that every path that has it serves.
  own.wants_lse = true;
  auto rows = path_of(own).run(own);
  auto scores = softmax->sink().to(rows.lse.options());
  if (call.uniform.defined()) scores = scores.masked_fill(call.uniform, kHiddenScore);
  const auto share = share_beside_sink(rows.lse, scores).unsqueeze(-1);  // [B,H,T,1]
  rows.out = (widened(rows.out) * share).to(rows.out.scalar_type());     // [B,H,T,e]
  return rows;
}

void require_maps(Backend backend, const std::string& what) {
  if (backend == Backend::kAuto || backend == Backend::kEager) return;
  const std::string names = backend == Backend::kRows ? "backend rows" : "backends sdpa and flash";
  throw BackendError(names + ": not for " + what + "; auto or eager serves");
}

}  // namespace headlab
