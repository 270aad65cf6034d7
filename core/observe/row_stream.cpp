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

template <class T>
void hold_values(HeldRows<T>& rows, const AttentionCall& call, const CountedRows& counted,
                 at::Device device) {
  auto& p = rows.problem;
  constexpr auto kType = at::CppTypeToScalarType<T>::value;
  const auto here = [&](const Tensor& t) {
    const auto x = t.detach().to(device, kType);
    return rows.tensors.emplace_back(x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous());
  };
  p.e = counted.out.size(3);
  p.output = view<T>(here(counted.out));
  if (counted.row_sums.defined())
    p.row_sum = here(counted.row_sums.contiguous()).template const_data_ptr<T>();
  if (!counted.output_weight.defined()) return;
  p.v = view<T>(here(call.v));
  const auto weight = here(counted.output_weight);
  p.output_weight = weight.template const_data_ptr<T>();
  p.output_weight_stride = weight.stride(0);
  p.D = weight.size(0);
  p.value_norm =
      rows.tensors
          .emplace_back(at::empty({p.B, p.H, p.keys}, at::TensorOptions(kType).device(device)))
          .template mutable_data_ptr<T>();
}

template <class T>
void hold_tokens(HeldRows<T>& rows, const CountedRows& counted, at::Device device) {
  auto& p = rows.problem;
  p.matches = counted.matches;
  p.has_scores = counted.has_scores;
  const auto here = [&](const Tensor& t, at::ScalarType type) {
    return rows.tensors.emplace_back(t.detach().to(device, type).contiguous());
  };
  if (counted.tokens.defined() && !p.cross) {
    const auto tokens = here(counted.tokens, at::kLong);
    p.tokens = tokens.template const_data_ptr<int64_t>();
    if (counted.class_of_token.defined())
      p.classes = here(here(counted.class_of_token, at::kByte).index({tokens}), at::kByte)
                      .template const_data_ptr<uint8_t>();
  }
  if (counted.classes.defined())
    p.classes = here(counted.classes, at::kByte).template const_data_ptr<uint8_t>();
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
                  [&](int64_t h, T* scratch) { row_stats_kernels<T>().norms(p, h, scratch); });
  }
  std::fill_n(to.offsets, to.count() * kRowsPerSlot, kNoRow);
  std::fill_n(to.maxima, to.count() * kRowMaxima, -std::numeric_limits<double>::infinity());
  over_slots<T>(to.count(), row_scratch(p), [&](int64_t slot, T* scratch) {
    row_stats_kernels<T>().rows(p, slot, to.totals(slot), to.offsets + slot * kRowsPerSlot,
                                scratch);
  });
  const int64_t pairs = p.H * p.H, step = kJsRowsPerSlot * sampled.stride;
  over_slots<T>(p.B * to.groups, js_scratch(p), [&](int64_t slot, T* scratch) {
    row_stats_kernels<T>().js(p, slot / to.groups, sampled.start + slot % to.groups * step,
                              sampled.stride, to.js + slot * pairs, to.js_counts + slot * pairs,
                              scratch);
  });
}

template <class T>
void run_on_cuda(HeldRows<T>& rows, const AttentionCall& call, SampledRows sampled, RowSlots& to) {
  const auto device = to.memory.device();
  const c10::DeviceGuard guard(device);
  void* stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  auto scratch = [&](int64_t elements) {
    return at::empty({elements}, rows.tensors.front().options());
  };
  auto check = [](const char* error) { TORCH_CHECK(!error, "statistics: CUDA: ", error); };
  transpose_keys(rows, call);
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
RowSlots stream_rows_as(const AttentionCall& call, const CountedRows& counted,
                        SampledRows sampled) {
  const bool on_cuda = kHasCuda && call.q.is_cuda();
  const auto device = on_cuda ? call.q.device() : at::Device(at::kCPU);
  auto rows = hold_rows<T>(call, counted, device);
  auto slots = make_slots(rows.problem, sampled, device);
  if constexpr (kHasCuda) {
    if (on_cuda) {
      run_on_cuda(rows, call, sampled, slots);
      return slots;
    }
  }
  run_on_cpu(rows.problem, sampled, slots);
  return slots;
}

}  // namespace

template <class T>
HeldRows<T> hold_rows(const AttentionCall& call, const CountedRows& counted, at::Device device) {
  HeldRows<T> rows;
  auto& p = rows.problem;
  static_cast<AttentionRows<T>&>(p) = kernel_rows<T>(call, device, rows.tensors);
  p.causal = call.causal;
  p.kv_head =
      rows.tensors
          .emplace_back(
              kv_heads(call.kv_map, p.H, call.k.size(1), device).to(device, at::kLong).contiguous())
          .template const_data_ptr<int64_t>();
  hold_values(rows, call, counted, device);
  hold_tokens(rows, counted, device);
  return rows;
}
template HeldRows<float> hold_rows(const AttentionCall&, const CountedRows&, at::Device);
template HeldRows<double> hold_rows(const AttentionCall&, const CountedRows&, at::Device);

template <class T>
void transpose_keys(HeldRows<T>& rows, const AttentionCall& call) {
  const auto like = rows.tensors.front().options();  // of the queries
  rows.problem.k = view<T>(rows.tensors.emplace_back(
      call.k.detach().to(like).transpose(-1, -2).contiguous()));  // [B,Hkv,d,S]
}
template void transpose_keys(HeldRows<float>&, const AttentionCall&);
template void transpose_keys(HeldRows<double>&, const AttentionCall&);

RowSlots stream_rows(const AttentionCall& call, const CountedRows& counted, SampledRows sampled) {
  TORCH_CHECK(call.q.size(1) <= 1024, "statistics: at most 1024 heads a layer, are ",
              call.q.size(1));
  return call.q.scalar_type() == at::kDouble ? stream_rows_as<double>(call, counted, sampled)
                                             : stream_rows_as<float>(call, counted, sampled);
}

}  // namespace headlab
