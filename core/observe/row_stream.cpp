#include "core/observe/row_stream.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "core/attention/call/attention_call.h"
#include "core/attention/precision.h"
#include "core/kernels/row_stats_cuda.h"
#include "core/torch.h"

namespace headlab {

namespace {

#ifdef HEADLAB_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

// norm(W_O^h v_j) [B,H,S]: norm^2 = v^T (W_O^hT W_O^h) v. Undefined without an output projection.
template <class T>
Tensor value_norms(const AttentionCall& call, const Tensor& output_weight) {
  if (!output_weight.defined()) return output_weight;
  const WithoutAutocast exact;
  const at::NoGradGuard no_grad;
  const auto v = call.values().to(at::CppTypeToScalarType<T>::value);  // [B,H,S,e]
  const int64_t B = v.size(0), H = v.size(1), S = v.size(2), e = v.size(3);
  const auto w = output_weight.to(v.options()).unflatten(1, {H, e});      // [D,H,e]
  const auto gram = at::matmul(w.permute({1, 2, 0}), w.transpose(0, 1));  // [H,e,e]
  // Where heads lie side by side in memory, as projections leave them, no value is copied.
  const auto rows = v.transpose(1, 2).reshape({B * S, H, e}).transpose(0, 1);  // [H,BS,e]
  const auto squares = at::bmm(rows, gram).mul_(rows).sum(-1).clamp_min_(0);   // NaN stays
  return squares.sqrt_().view({H, B, S}).transpose(0, 1);
}

// Numbers of keys x [B,S] -> [B,before+padded], NaN before and behind them. Undefined without any.
template <class T>
Tensor with_ends(const Tensor& x, int64_t before, int64_t padded) {
  if (!x.defined()) return {};
  const auto rows =
      at::full({x.size(0), before + padded}, std::numeric_limits<T>::quiet_NaN(),
               at::TensorOptions(at::CppTypeToScalarType<T>::value).device(x.device()));
  rows.narrow(1, before, x.size(1)).copy_(x);
  return rows;
}

template <class T>
const T* data(const Tensor& t) {
  return t.defined() ? t.const_data_ptr<T>() : nullptr;
}

// Points the slots into their memory; offsets take the last, half as wide, numbers.
void lay_out(RowSlots& slots) {
  const int64_t rows = slots.count();
  const int64_t pairs = slots.B * slots.groups * slots.H * slots.H;
  slots.sums = slots.memory.data_ptr<double>();
  slots.counts = slots.sums + rows * kRowStatistics;
  slots.maxima = slots.counts + rows * kRowStatistics;
  slots.js = slots.maxima + rows * kRowMaxima;
  slots.js_counts = slots.js + pairs;
  slots.offsets = reinterpret_cast<int32_t*>(slots.js_counts + pairs);
}

template <class T>
RowSlots make_slots(const RowProblem<T>& p, SampledRows sampled, at::Device device) {
  RowSlots slots{};
  slots.B = p.B, slots.H = p.H, slots.blocks = row_slots(p) / (p.B * p.H);
  if (sampled.stride > 0 && p.queries > sampled.start) {
    const int64_t rows = (p.queries - sampled.start - 1) / sampled.stride + 1;
    slots.groups = (rows + kJsRowsPerSlot - 1) / kJsRowsPerSlot;
  }
  const int64_t doubles = slots.count() * (2 * kRowStatistics + kRowMaxima + kRowsPerSlot / 2) +
                          2 * p.B * slots.groups * p.H * p.H;
  slots.memory = at::zeros({doubles}, at::TensorOptions(at::kDouble).device(device));
  lay_out(slots);
  return slots;
}

// Runs body(slot, scratch) over all slots, each thread with scratch of its own.
template <class T, class Body>
void over_slots(int64_t slots, int64_t scratch, Body body) {
  at::parallel_for(0, slots, 1, [&](int64_t begin, int64_t end) {
    const auto buffer = std::make_unique_for_overwrite<T[]>(scratch);
    for (int64_t slot = begin; slot < end; ++slot) body(slot, buffer.get());
  });
}

template <class T>
void run_on_cpu(const RowProblem<T>& p, SampledRows sampled, RowSlots& to) {
  const auto kernels = row_stats_kernels<T>();
  over_slots<T>(to.count(), kernels.row_scratch(p), [&](int64_t slot, T* scratch) {
    kernels.rows(p, slot, to.totals(slot), to.offsets + slot * kRowsPerSlot, scratch);
  });
  const int64_t pairs = p.H * p.H, step = kJsRowsPerSlot * sampled.stride;
  over_slots<T>(p.B * to.groups, kernels.js_scratch(p), [&](int64_t slot, T* scratch) {
    kernels.js(p, slot / to.groups, sampled.start + slot % to.groups * step, sampled.stride,
               to.js + slot * pairs, to.js_counts + slot * pairs, scratch);
  });
}

template <class T>
void run_on_cuda(const HeldRows<T>& rows, SampledRows sampled, RowSlots& to) {
  const auto device = to.memory.device();
  const c10::DeviceGuard guard(device);
  void* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  auto scratch = [&](int64_t elements) {
    return at::empty({elements}, rows.tensors.front().options());
  };
  auto check = [](const char* error) { TORCH_CHECK(!error, "statistics: CUDA: ", error); };
  const auto& p = rows.problem;
  const auto row_room = scratch(row_stats_cuda_scratch(p));
  check(launch_row_stats(p, to.totals(0), to.offsets, row_room.template data_ptr<T>(), stream));
  if (to.groups > 0) {
    const auto js_room = scratch(js_cuda_scratch(p, to.groups));
    check(launch_js(p, {to.groups, sampled.start, sampled.stride, to.js, to.js_counts},
                    js_room.template data_ptr<T>(), stream));
  }
  to.memory = to.memory.to(at::kCPU);  // the one copy, and the only wait
  lay_out(to);
}

template <class T>
RowSlots stream_rows_as(const AttentionCall& call, const CountedRows& counted,
                        SampledRows sampled) {
  const bool on_cuda = kHasCuda && call.q.is_cuda();
  const auto device = on_cuda ? call.q.device() : at::Device(at::kCPU);
  auto rows = hold_rows<T>(call, counted, device);
  auto slots = make_slots(rows.problem, sampled, device);
  if constexpr (kHasCuda) {
    if (on_cuda) {
      run_on_cuda(rows, sampled, slots);
      return slots;
    }
  }
  run_on_cpu(rows.problem, sampled, slots);
  return slots;
}

// The keys of all slots, transposed once.
template <class T>
void hold_panels(HeldRows<T>& rows) {
  auto& p = rows.problem;
  const auto kernels = row_stats_kernels<T>();
  const int64_t groups = p.k.size[1], panel = p.d * padded_keys(p);
  rows.panels = std::make_shared_for_overwrite<T[]>(p.B * groups * panel);
  at::parallel_for(0, p.B * groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n)
      kernels.panel(p, n / groups, n % groups, rows.panels.get() + n * panel);
  });
  p.panels = rows.panels.get();
}

}  // namespace

template <class T>
HeldRows<T> hold_rows(const AttentionCall& call, const CountedRows& counted, at::Device device) {
  HeldRows<T> rows;
  constexpr auto kType = at::CppTypeToScalarType<T>::value;
  const auto here = [&](const Tensor& t, at::ScalarType type) {
    return rows.tensors.emplace_back(t.defined() ? t.detach().to(device, type).contiguous() : t);
  };
  auto& p = rows.problem;
  static_cast<AttentionRows<T>&>(p) = kernel_rows<T>(call, device, rows.tensors);
  p.causal = call.causal;
  if (call.kv_map.defined() || call.k.size(1) != p.H)
    p.kv_head = data<int64_t>(here(kv_heads(call.kv_map, p.H, call.k.size(1), device), at::kLong));
  p.e = counted.out.size(3);
  p.output = view<T>(rows.tensors.emplace_back(dense_rows(counted.out.detach().to(device, kType))));
  p.value_norm = data<T>(here(value_norms<T>(call, counted.output_weight), kType));
  p.row_sum = data<T>(here(counted.row_sums, kType));
  const int64_t padded = padded_keys(p);
  if (counted.matches && call.places)  // else keys are no tokens, or those of others
    p.tokens = data<T>(here(with_ends<T>(counted.tokens, 1, padded), kType));
  p.classes = data<T>(here(with_ends<T>(counted.classes, 0, padded), kType));
  p.coarse = rounds(call.q);
  p.has_scores = counted.has_scores;
  if (device.is_cpu()) hold_panels(rows);
  return rows;
}
template HeldRows<float> hold_rows(const AttentionCall&, const CountedRows&, at::Device);
template HeldRows<double> hold_rows(const AttentionCall&, const CountedRows&, at::Device);

RowSlots stream_rows(const AttentionCall& call, const CountedRows& counted, SampledRows sampled) {
  TORCH_CHECK(call.q.size(1) <= kMostHeads, "statistics: at most ", kMostHeads,
              " heads a layer, are ", call.q.size(1));
  return call.q.scalar_type() == at::kDouble ? stream_rows_as<double>(call, counted, sampled)
                                             : stream_rows_as<float>(call, counted, sampled);
}

}  // namespace headlab
