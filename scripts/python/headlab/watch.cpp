// headlab.watch in C++: the operator torch.ops.headlab.observe, which stands behind each attention
// of a watched model and streams its statistics, and headlab._C.Watch, which collects them.
//
// B batch, T queries, S keys, H heads, Hkv heads of keys and values, e width of a head's values.
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/whole_library.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <unordered_map>

#include "core/attention/call/attention_call.h"
#include "scripts/python/headlab/binding.h"

namespace py = pybind11;

namespace headlab {
namespace {

constexpr int64_t kMostStride = 16;  // of the rows whose divergence between heads is measured
constexpr int64_t kFewestRows = 4;   // of such rows in a call that has as many

// An attention as the model computes it. Undefined tensors: none.
struct Seen {
  Tensor q, k, v;  // [B,H,T,d], [B,Hkv,S,d], [B,Hkv,S,e]
  Tensor out;      // [B,H,T,e]
  Tensor weight;   // [D,H*e] of the output projection
  Tensor allowed;  // bool [b,h,t,s], each 1 or the whole size
  Tensor bias;     // likewise, added to the scores
  bool causal = false;
  int64_t window = 0;
  Tensor real;     // bool [B,T] in the model's order: which queries are no padding
  Tensor length;   // [B] where examples lie at the front of their rows
  Tensor counted;  // bool [B,T] the rows that count, where `length` does not tell

  int64_t B() const { return q.size(0); }
  int64_t T() const { return q.size(2); }
  int64_t S() const { return k.size(2); }
};

Tensor four_dims(Tensor t) {
  TORCH_CHECK(t.dim() <= 4, "watch: a mask of ", t.dim(), " dimensions");
  while (t.dim() < 4) t = t.unsqueeze(0);
  return t;
}

// At and below it an additive mask hides a key: models write the lowest number of the type, or
// -1e9, for -infinity.
double hides_at(at::ScalarType type) { return type == at::kHalf ? -3e4 : -1e9; }

void add_bias(Seen& seen, const Tensor& bias) {
  seen.bias = seen.bias.defined() ? seen.bias + bias : bias;
}

void take_mask(Seen& seen, const Tensor& given) {
  if (!given.defined()) return;
  const auto mask = four_dims(given.detach());
  if (!at::isFloatingType(mask.scalar_type())) {
    seen.allowed = mask.to(at::kBool);
    return;
  }
  seen.allowed = mask > hides_at(mask.scalar_type());
  if ((seen.allowed & (mask != 0)).any().item<bool>())
    add_bias(seen, mask.masked_fill(seen.allowed.logical_not(), 0));
}

// Scores that are no products of q and k: c tanh(z / c), handed on as the bias of scores that are
// 0. This alone holds numbers of every pair. Returns the scale that is left.
double cap_scores(Seen& seen, double scale, double c) {
  const AttentionCall call = [&] {
    AttentionCall plain;
    plain.q = seen.q, plain.k = seen.k, plain.scale = scale;
    return plain;
  }();
  add_bias(seen, (call.products() / c).tanh() * c);  // [B,H,T,S]
  const auto none = seen.q.new_zeros({1, 1, 1, 1});
  seen.q = none.expand({seen.B(), seen.q.size(1), seen.T(), 1});
  seen.k = none.expand({seen.B(), seen.k.size(1), seen.S(), 1});
  return 0;
}

// Of a mask the part behind each query's own place: whether all of it is hidden.
bool hides_later_keys(const Seen& seen) {
  if (seen.causal || !seen.allowed.defined()) return seen.causal;
  if (seen.allowed.size(2) != seen.T() || seen.allowed.size(3) != seen.S() || seen.S() < 2)
    return false;
  return !seen.allowed.triu(seen.S() - seen.T() + 1).any().item<bool>();
}

// x with index [B,n] taken in dimension `dim`, which is left as it is where its size is 1.
Tensor moved(const Tensor& x, const Tensor& index, int64_t dim) {
  if (!x.defined() || x.size(dim) == 1) return x;
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end()), places{index.size(0), 1, 1, 1};
  sizes[0] = index.size(0), sizes[dim] = places[dim] = index.size(1);
  return x.expand({index.size(0), -1, -1, -1}).gather(dim, index.view(places).expand(sizes));
}

// A sequence that attends to itself: a place that no query sees is padding. Examples are moved to
// the front of their rows, so that padding ahead of them changes no distance.
void take_padding(Seen& seen) {
  if (!seen.allowed.defined()) return;
  const int64_t S = seen.S();
  const auto real = seen.allowed.flatten(1, 2).any(1).expand({seen.B(), S});  // [B,S]
  if (real.all().item<bool>()) return;
  seen.real = real;
  const auto places = at::arange(S, real.options().dtype(at::kLong));
  const auto length = real.sum(1);                                    // [B]
  const auto first = real.to(at::kByte).argmax(1, /*keepdim=*/true);  // [B,1]
  const auto order = (places + first).remainder(S);                   // [B,S]
  if (!real.gather(1, order).equal(places < length.unsqueeze(1))) {
    seen.counted = real;
    return;
  }
  seen.length = length;
  if (first.eq(0).all().item<bool>()) return;
  for (Tensor* rows : {&seen.q, &seen.k, &seen.v, &seen.out}) *rows = moved(*rows, order, 2);
  for (Tensor* pairs : {&seen.allowed, &seen.bias})
    *pairs = moved(moved(*pairs, order, 2), order, 3);
}

// Leaves a mask out that hides no more than causality and lengths do, by which rows are streamed
// faster.
void drop_mask(Seen& seen) {
  if (!seen.allowed.defined() || seen.counted.defined()) return;
  const auto& device = seen.q.device();
  AttentionMask rest;
  rest.causal = seen.causal, rest.key_length = seen.length;
  const auto wanted = allowed_keys(rest, seen.T(), seen.S(), device);
  auto hidden = seen.allowed.logical_not();
  if (wanted.defined()) hidden = hidden & wanted;  // [b,h,T,S]
  if (const auto rows = within_length(seen.length, seen.T(), device); rows.defined())
    hidden = hidden & rows.unsqueeze(1).unsqueeze(3);  // [B,1,T,1]
  if (!hidden.any().item<bool>()) seen.allowed = Tensor();
}

// What one `headlab.watch` collects.
class Watch {
 public:
  std::atomic<bool> due{false};  // whether passes of now count

  explicit Watch(bool divergence) {
    probe_.statistics = true;
    probe_.divergence = divergence;
  }

  void observe(const std::string& site, int64_t layer, Seen seen, double scale) {
    const std::lock_guard lock(mutex_);
    const bool cross = site == "cross";
    if (cross) {
      const bool fits = rows_.defined() && rows_.size(0) == seen.B() && rows_.size(1) == seen.T();
      if (fits) seen.counted = rows_;
    } else {
      seen.causal = hides_later_keys(seen);
      if (seen.T() == seen.S()) take_padding(seen);
      // Queries of cross-attention are those of the decoder's own attention ahead of it.
      if (site != "encoder_self") rows_ = seen.real;
      if (seen.T() == seen.S()) drop_mask(seen);
    }
    stream(site, layer, seen, scale);
  }

  ProbeSums take() {
    const std::lock_guard lock(mutex_);
    ++draw_;
    rows_ = Tensor();
    return probe_.take_sums();
  }

 private:
  void stream(const std::string& site, int64_t layer, const Seen& seen, double scale) {
    const int64_t H = seen.q.size(1);
    std::vector<int64_t> heads(H);
    std::iota(heads.begin(), heads.end(), int64_t{0});
    probe_.js_stride = std::clamp(seen.T() / kFewestRows, int64_t{1}, kMostStride);
    probe_.enter({.site = site,
                  .layer = layer,
                  .heads = H,
                  .head_ids = heads,
                  .alive = std::vector<bool>(H, true),
                  .output_weight = seen.weight});
    HeadContext context;
    context.mask = {.causal = seen.causal,
                    .window = seen.window,
                    .query_length = seen.length,
                    .key_length = seen.length,
                    .allowed = seen.allowed};
    context.bias = seen.bias;
    context.places = site != "cross";
    context.rng = {.seed = 0, .step = draw_, .site = CounterRng::site_key(site), .layer = layer};
    const AttentionCall call(seen.q, seen.k, seen.v, HeadCall::from_context(context), scale);
    auto counted = seen.counted;
    if (counted.defined()) counted = counted.unsqueeze(1).expand({seen.B(), H, seen.T()});
    probe_.softmax(call, seen.out, counted);
  }

  std::mutex mutex_;
  HeadProbe probe_;
  Tensor rows_;  // Seen::real of the newest attention that may be ahead of a cross-attention
  uint64_t draw_ = 0;
};

// Where an attention stands in the model, by the number in its state tensor [number, calls that
// counted]. A compiled graph takes that tensor as an input, so that layers can share a graph.
struct Seat {
  std::shared_ptr<Watch> watch;
  std::string site;
  int64_t layer = 0;
};

class Seats {
 public:
  static Seats& all() {
    static Seats seats;
    return seats;
  }
  int64_t add(Seat seat) {
    const std::lock_guard lock(mutex_);
    seats_.emplace(++last_, std::move(seat));
    return last_;
  }
  // Without a watch: its watch has ended.
  Seat find(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = seats_.find(number);
    return found == seats_.end() ? Seat() : found->second;
  }
  void remove(const Watch* watch) {
    const std::lock_guard lock(mutex_);
    std::erase_if(seats_, [&](const auto& seat) { return seat.second.watch.get() == watch; });
  }

 private:
  std::mutex mutex_;
  std::unordered_map<int64_t, Seat> seats_;
  int64_t last_ = 0;
};

bool is_recomputed() { return torch::autograd::get_current_graph_task_id() != -1; }

void require_sizes(const Seen& seen) {
  const auto &q = seen.q, &k = seen.k, &v = seen.v, &out = seen.out;
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && out.dim() == 4,
              "watch: q, k, v and out must be [B,H,T,d], [B,Hkv,S,d], [B,Hkv,S,e] and [B,H,T,e]; "
              "they are ",
              q.sizes(), ", ", k.sizes(), ", ", v.sizes(), " and ", out.sizes());
  TORCH_CHECK(k.size(0) == q.size(0) && v.size(0) == q.size(0) && k.size(1) == v.size(1) &&
                  k.size(1) > 0 && q.size(1) % k.size(1) == 0 && q.size(3) == k.size(3) &&
                  k.size(2) == v.size(2) && out.size(0) == q.size(0) && out.size(1) == q.size(1) &&
                  out.size(2) == q.size(2) && out.size(3) == v.size(3),
              "watch: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(), " and out ",
              out.sizes(), " do not fit each other");
}

void observe(const Tensor& state, const Tensor& q, const Tensor& k, const Tensor& v,
             const Tensor& out, const OptionalTensor& weight, const OptionalTensor& mask,
             const OptionalTensor& bias, double scale, bool causal, int64_t window,
             double softcap) {
  if (state.is_meta()) return;
  auto* numbers = state.mutable_data_ptr<int64_t>();
  const auto seat = Seats::all().find(numbers[0]);
  if (!seat.watch || !seat.watch->due || is_recomputed()) return;
  const at::NoGradGuard no_grad;
  Seen seen;
  seen.q = q.detach(), seen.k = k.detach(), seen.v = v.detach(), seen.out = out.detach();
  require_sizes(seen);
  if (q.numel() == 0 || k.numel() == 0) return;
  const auto w = tensor_or_none(weight);
  const bool fits = w.defined() && w.dim() == 2 && w.size(1) == q.size(1) * v.size(3);
  if (fits) seen.weight = w.detach();
  seen.causal = causal, seen.window = window;
  take_mask(seen, tensor_or_none(mask));
  if (softcap > 0) scale = cap_scores(seen, scale, softcap);
  if (bias) add_bias(seen, four_dims(bias->detach()));
  seat.watch->observe(seat.site, seat.layer, seen, scale);
  ++numbers[1];
}

// (site, layer, heads, {name: [H] or [H,H], float64})
using LayerRow = std::tuple<std::string, int64_t, int64_t, NamedValues>;

std::vector<LayerRow> rows_of(const ProbeSums& all) {
  std::vector<LayerRow> rows;
  for (const auto& [key, sums] : all) {
    NamedValues values;
    const auto by_name = head_values(sums);
    for (const auto& statistic : statistic_table()) {
      auto value = at::tensor(by_name.at(statistic.name), at::kDouble);
      if (statistic.per == Per::kPair) value = value.view({sums.heads, sums.heads});
      values.emplace_back(statistic.name, value);
    }
    rows.emplace_back(key.site, key.layer, sums.heads, std::move(values));
  }
  return rows;
}

const char* needs_of(const Statistic& statistic) {
  if (statistic.needs == Needs::kTokens) return "tokens";
  return statistic.needs == Needs::kClasses ? "classes" : "";
}

}  // namespace

// The autograd keys fall through: nothing of it has a gradient. It changes its state, so that a
// compiled graph keeps it; on tensors without memory, which a compiler traces with, it does
// nothing.
TORCH_LIBRARY_FRAGMENT(headlab, library) {
  library.def(
      "observe(Tensor(a!) state, Tensor q, Tensor k, Tensor v, Tensor out, Tensor? weight, "
      "Tensor? mask, Tensor? bias, float scale, bool causal, int window, float softcap) -> ()",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(headlab, CompositeExplicitAutograd, library) {
  library.impl("observe", &observe);
}
TORCH_LIBRARY_IMPL(headlab, Autograd, library) {
  library.impl("observe", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(headlab, ADInplaceOrView, library) {
  library.impl("observe", torch::CppFunction::makeFallthrough());
}

void bind_watch(py::module_& module) {
  module.def("statistic_table", [] {
    // name, units, long name, formula, whether it is always on, whether it is of pairs, what it
    // needs
    std::vector<
        std::tuple<std::string, std::string, std::string, std::string, bool, bool, std::string>>
        rows;
    for (const auto& s : statistic_table())
      rows.emplace_back(s.name, s.units, s.long_name, s.formula, s.always, s.per == Per::kPair,
                        needs_of(s));
    return rows;
  });
  py::class_<Watch, std::shared_ptr<Watch>>(module, "Watch")
      .def(py::init<bool>(), py::arg("divergence"))
      .def_property(
          "due", [](const Watch& watch) { return watch.due.load(); },
          [](Watch& watch, bool due) { watch.due = due; })
      .def("seat",
           [](const std::shared_ptr<Watch>& watch, const std::string& site, int64_t layer) {
             const std::vector<int64_t> numbers{Seats::all().add({watch, site, layer}), 0};
             return at::tensor(numbers, at::kLong);
           })
      .def(
          "take", [](Watch& watch) { return rows_of(watch.take()); },
          py::call_guard<py::gil_scoped_release>())
      .def("close", [](const Watch& watch) { Seats::all().remove(&watch); });
}

}  // namespace headlab
