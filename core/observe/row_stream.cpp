#include "core/observe/row_stream.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "core/attention/attend.h"
#include "core/kernels/row_stats_cuda.h"
#include "core/torch.h"

namespace headlab {

namespace {

#ifdef HEADLAB_CUDA
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

void copy_strides(const Tensor& t, int64_t* strides, int n) {
  for (int i = 0; i < n; ++i) strides[i] = t.stride(i);
}

// Puts the parts of a call where the kernels want them and keeps them alive.
template <class T>
struct Holder {
  HeldRows<T>& rows;
  at::Device device;

  static constexpr auto kType = at::CppTypeToScalarType<T>::value;

  Tensor here(const Tensor& t, at::ScalarType type) const { return t.detach().to(device, type); }
  Tensor dense_rows(const Tensor& t) const {
    const auto x = here(t, kType);
    return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
  }
  template <class N>
  N* hold(const Tensor& t) const {
    rows.others.push_back(t);
    return static_cast<N*>(t.data_ptr());
  }
  template <class N>
  const N* hold_all(const Tensor& t) const {  // null where undefined
    return t.defined() ? hold<N>(here(t, at::CppTypeToScalarType<N>::value).contiguous()) : nullptr;
  }
};

template <class T>
void hold_scores(const Holder<T>& to, const RowCall& call, const HeadCall& ctx) {
  auto& p = to.rows.problem;
  const auto queries = to.dense_rows(call.q);
  p.B = call.q.size(0), p.H = call.q.size(1), p.queries = call.q.size(2), p.d = call.q.size(3);
  p.keys = call.k.size(2);
  p.q = to.template hold<T>(queries);
  copy_strides(queries, p.q_stride, 3);
  to.rows.keys = to.dense_rows(call.k);
  p.k = static_cast<T*>(to.rows.keys.data_ptr());
  copy_strides(to.rows.keys, p.k_stride, 3);
  const auto kv = kv_heads(ctx, p.H, call.k.size(1), at::kCPU);
  p.kv_head = to.template hold_all<int64_t>(kv);
  p.scale = call.scale;
  p.causal = ctx.mask.causal;
  p.reach = key_reach(ctx.mask.causal, ctx.mask.window);
  p.cross = !ctx.places;
  p.query_length = to.template hold_all<int64_t>(ctx.mask.query_length);
  p.key_length = to.template hold_all<int64_t>(ctx.mask.key_length);
  const std::vector<int64_t> map{p.B, p.H, p.queries, p.keys};
  if (ctx.mask.allowed.defined()) {
    const auto allowed = to.here(ctx.mask.allowed, at::kBool).expand(map);
    p.allowed = to.template hold<bool>(allowed);
    copy_strides(allowed, p.allowed_stride, 4);
  }
  if (ctx.bias.defined()) {
    const auto bias = to.here(ctx.bias, to.kType).expand(map);
    p.bias = to.template hold<T>(bias);
    copy_strides(bias, p.bias_stride, 4);
  }
  if (ctx.position_bias)
    p.distance_bias = to.template hold_all<T>(biases_by_distance(ctx, p.queries, p.keys));
}

template <class T>
void hold_values(const Holder<T>& to, const RowCall& call) {
  auto& p = to.rows.problem;
  const auto outputs = to.dense_rows(call.out);
  p.e = call.out.size(3);
  p.output = to.template hold<T>(outputs);
  copy_strides(outputs, p.output_stride, 3);
  p.row_sum = to.template hold_all<T>(call.row_sums);
  if (!call.output_weight.defined()) return;
  const auto values = to.dense_rows(call.v), weight = to.dense_rows(call.output_weight);
  p.v = to.template hold<T>(values);
  copy_strides(values, p.v_stride, 3);
  p.output_weight = to.template hold<T>(weight);
  p.output_weight_stride = weight.stride(0);
  p.D = weight.size(0);
  p.value_norm = to.template hold<T>(
      at::empty({p.B, p.H, p.keys}, at::TensorOptions(to.kType).device(to.device)));
}

template <class T>
void hold_tokens(const Holder<T>& to, const RowCall& call) {
  auto& p = to.rows.problem;
  p.matches = call.matches;
  p.has_scores = call.has_scores;
  if (call.tokens.defined() && !p.cross) {
    p.tokens = to.template hold_all<int64_t>(call.tokens);
    if (call.class_of_token.defined())
      p.classes = to.template hold_all<uint8_t>(
          to.here(call.class_of_token, at::kByte).index({to.here(call.tokens, at::kLong)}));
  }
  if (call.classes.defined()) p.classes = to.template hold_all<uint8_t>(call.classes);
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
    std::vector<T> buffer(scratch + 16);
    for (int64_t slot = begin; slot < end; ++slot) body(slot, buffer.data());
  });
}

template <class T>
void run_on_cpu(const RowProblem<T>& p, SampledRows sampled, RowSlots& to) {
  if (p.value_norm) {
    const int64_t width = (p.e + 15) / 16 * 16;
    over_slots<T>(p.H, (p.e + 1) * width,
                  [&](int64_t h, T* scratch) { norm_slot<T>()(p, h, scratch); });
  }
  std::fill_n(to.offsets, to.count() * kRowsPerSlot, kNoRow);
  std::fill_n(to.maxima, to.count() * kRowMaxima, -std::numeric_limits<double>::infinity());
  over_slots<T>(to.count(), row_scratch(p), [&](int64_t slot, T* scratch) {
    row_stats_slot<T>()(p, slot, to.totals(slot), to.offsets + slot * kRowsPerSlot, scratch);
  });
  const int64_t pairs = p.H * p.H, step = kJsRowsPerSlot * sampled.stride;
  over_slots<T>(p.B * to.groups, js_scratch(p), [&](int64_t slot, T* scratch) {
    js_slot<T>()(p, slot / to.groups, sampled.start + slot % to.groups * step, sampled.stride,
                 to.js + slot * pairs, to.js_counts + slot * pairs, scratch);
  });
}

template <class T>
void run_on_cuda(HeldRows<T>& rows, SampledRows sampled, RowSlots& to) {
  const auto device = to.memory.device();
  const c10::DeviceGuard guard(device);
  void* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  auto scratch = [&](int64_t elements) { return at::empty({elements}, rows.keys.options()); };
  auto check = [](const char* error) { TORCH_CHECK(!error, "statistics: CUDA: ", error); };
  transpose_keys(rows);
  const auto& p = rows.problem;
  if (p.value_norm) {
    const auto gram = scratch(p.H * p.e * p.e);
    check(launch_value_norms(p, gram.template data_ptr<T>(), stream));
  }
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
RowSlots stream_rows_as(const RowCall& call, const HeadCall& ctx, SampledRows sampled) {
  const bool on_cuda = kHasCuda && call.q.is_cuda();
  const auto device = on_cuda ? call.q.device() : at::Device(at::kCPU);
  auto rows = hold_rows<T>(call, ctx, device);
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

}  // namespace

template <class T>
HeldRows<T> hold_rows(const RowCall& call, const HeadCall& ctx, at::Device device) {
  HeldRows<T> rows;
  const Holder<T> to{rows, device};
  hold_scores(to, call, ctx);
  hold_values(to, call);
  hold_tokens(to, call);
  return rows;
}
template HeldRows<float> hold_rows(const RowCall&, const HeadCall&, at::Device);
template HeldRows<double> hold_rows(const RowCall&, const HeadCall&, at::Device);

template <class T>
void transpose_keys(HeldRows<T>& rows) {
  rows.keys = rows.keys.transpose(-1, -2).contiguous();  // [B,Hkv,d,S]
  rows.problem.k = rows.keys.template data_ptr<T>();
  copy_strides(rows.keys, rows.problem.k_stride, 3);
}
template void transpose_keys(HeldRows<float>&);
template void transpose_keys(HeldRows<double>&);

RowSlots stream_rows(const RowCall& call, const HeadCall& ctx, SampledRows sampled) {
  TORCH_CHECK(call.q.size(1) <= 1024, "statistics: at most 1024 heads a layer, are ",
              call.q.size(1));
  return call.q.scalar_type() == at::kDouble ? stream_rows_as<double>(call, ctx, sampled)
                                             : stream_rows_as<float>(call, ctx, sampled);
}

}  // namespace headlab
