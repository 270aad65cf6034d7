// A layer of heads in Python: headlab._C.Heads, which headlab.Heads wraps in a torch.nn.Module.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <tuple>

#include "core/attention/call/cache.h"
#include "core/attention/paths/paths.h"
#include "core/head_kinds.h"
#include "core/restore_heads.h"
#include "experiments/conversion/convert.h"
#include "experiments/files/field_table.h"
#include "scripts/python/headlab/binding.h"

namespace py = pybind11;

namespace headlab {

NamedValues parameters_of(const torch::nn::Module& module) {
  NamedValues all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}

NamedValues buffers_of(const torch::nn::Module& module) {
  NamedValues all;
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}

NamedValues values_of(const HeadProbe& probe, const AttentionHeads& heads, const MapKey& key) {
  std::map<std::string, Statistic> own;
  for (const auto& statistic : heads.statistics()) own[statistic.name] = statistic;
  for (const auto& statistic : statistic_table()) own.try_emplace(statistic.name, statistic);
  NamedValues all;
  const int64_t H = heads.heads();
  for (const auto& [name, values] : probe.values(key)) {
    auto value = at::tensor(values, at::kDouble);
    const auto found = own.find(name);
    const auto per = found == own.end() ? Per::kHead : found->second.per;
    if (per == Per::kPair) value = value.view({H, H});
    if (per == Per::kExpert) value = value.view({H, -1});
    if (per == Per::kLayer) value = value.squeeze(0);
    all.emplace_back(name, value);
  }
  return all;
}

std::function<Tensor(const Tensor&)> output_hook(const py::object& hook) {
  if (hook.is_none()) return {};
  // The last owner may be a thread of C++ that does not hold Python's lock.
  const std::shared_ptr<py::object> kept(new py::object(hook), [](py::object* object) {
    const py::gil_scoped_acquire lock;
    delete object;
  });
  return [kept](const Tensor& outputs) {
    const py::gil_scoped_acquire lock;
    const auto replaced = (*kept)(outputs);
    if (replaced.is_none()) return outputs;
    const auto others = replaced.cast<Tensor>();
    TORCH_CHECK(others.sizes() == outputs.sizes(), "a hook must give outputs of the sizes ",
                outputs.sizes(), ", not ", others.sizes());
    return others;
  };
}

namespace {

struct Rope {
  double base = 10000, fraction = 1;
  std::string layout = "half";
};

// Options as JSON, which Python writes; `file` is what messages call them.
KindBlock kind_block(const std::string& kind, const std::string& options, const std::string& file) {
  head_kind(kind);  // names the nearest one
  KindBlock block(head_registry(), kind);
  auto node = parse_value(options, {.file = file, .base = {}}, "");
  node.set("kind", ConfigNode::scalar(kind, /*quoted=*/true));
  Problems problems;
  block.read(node, "", problems);
  problems.raise();
  return block;
}

// Statistics leave out the queries that are padding, wherever it lies.
class PaddedProbe : public HeadProbe {
 public:
  Tensor rows;  // bool [B,1,T]; undefined: all rows count

  void softmax(const AttentionCall& call, const Tensor& out, const Tensor& counted) override {
    HeadProbe::softmax(call, out, both(counted, out));
  }
  void weights(const ObservedMap& map, const HeadCall& call) override {
    auto those = map;
    those.counted = both(map.counted, map.p);
    HeadProbe::weights(those, call);
  }

 private:
  Tensor both(const Tensor& counted, const Tensor& like) const {
    if (!rows.defined()) return counted;
    const auto here = rows.expand({like.size(0), like.size(1), like.size(2)});
    return counted.defined() ? counted & here : here.contiguous();
  }
};

class Layer {
 public:
  Layer(const std::string& kind, const std::string& options, const std::string& file,
        HeadShape shape, const HeadDemands& demands, int64_t window, std::optional<Rope> rope)
      : causal_(demands.causal),
        window_(window),
        heads_(make_heads(kind_block(kind, options, file), shape, demands)) {
    if (rope)
      rotary_.emplace(rope->base,
                      rope->layout == "half" ? RopeLayout::kHalf : RopeLayout::kInterleaved,
                      rope->fraction);
  }
  Layer(std::shared_ptr<AttentionHeads> heads, const Layer& like)
      : causal_(like.causal_),
        window_(like.window_),
        rotary_(like.rotary_),
        heads_(std::move(heads)) {}

  struct Given {
    OptionalTensor memory, padding, mask, bias, positions, gates, noise, tokens;
    std::shared_ptr<LayerCache> cache;
    bool statistics = false, maps = false;
    std::function<Tensor(const Tensor&)> hook;
    std::string backend = "auto";
  };

  struct Result {
    Tensor y = {};
    OptionalTensor gates = {}, map = {};
    std::vector<std::tuple<std::string, Tensor, bool>> aux = {};  // whether layers take its mean
    NamedValues statistics = {};
  };

  Result forward(const Tensor& x, const Given& given) {
    HeadContext ctx;
    PaddedProbe probe;
    probe.statistics = given.statistics;
    probe.maps = given.maps;
    probe.js_stride = 1;
    probe.matches = given.tokens.has_value();
    probe.tokens = tensor_or_none(given.tokens);
    if (given.statistics || given.maps) ctx.observer = &probe;
    take_inputs(given, ctx);
    hide(x, given, ctx, probe);
    auto out = heads_->forward(x, ctx);
    Result result{.y = out.y};
    if (out.gates.defined()) result.gates = out.gates;
    for (const auto& aux : out.aux)
      result.aux.emplace_back(aux.name, aux.value, aux.over == OverLayers::kMean);
    const MapKey key(heads_->shape().site, heads_->shape().layer, 0);
    if (given.statistics) result.statistics = values_of(probe, *heads_, key);
    if (const auto map = probe.layer_maps().find(key); map != probe.layer_maps().end())
      result.map = map->second;
    return result;
  }

  AttentionHeads& heads() const { return *heads_; }
  bool causal() const { return causal_; }
  Layer slice() const { return {heads_->slice(), *this}; }
  // As it was saved: sliced to the heads of `head_ids`, where that is among the tensors.
  void load(const NamedTensors& tensors) {
    TORCH_CHECK(heads_->made_of(), "these heads are not made of a kind");
    auto restored = restore_heads(*heads_->made_of(), heads_->whole_shape(), tensors);
    restored->train(heads_->is_training());
    heads_ = restored;
  }

 private:
  void take_inputs(const Given& given, HeadContext& ctx) const {
    ctx.memory = tensor_or_none(given.memory);
    ctx.bias = tensor_or_none(given.bias);
    ctx.positions = tensor_or_none(given.positions);
    ctx.gates = tensor_or_none(given.gates);
    ctx.noise = tensor_or_none(given.noise);
    ctx.rotary = rotary_ ? &*rotary_ : nullptr;
    ctx.cache = given.cache.get();
    ctx.outputs = given.hook;
    ctx.backend = backend_of(given.backend);
    ctx.mask.causal = causal_ && !ctx.memory.defined();
    ctx.mask.window = ctx.memory.defined() ? 0 : window_;
  }

  static Backend backend_of(const std::string& name) {
    const auto known = backend_names();
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw ConfigError(
          fmt::format("backend: must be one of {}, is '{}'", fmt::join(known, ", "), name));
    return backend_named(name);
  }

  // Masks as Python hands them. Padding that lies behind the rest is a length, which every path and
  // kind takes; other padding is a mask of keys.
  void hide(const Tensor& x, const Given& given, HeadContext& ctx, PaddedProbe& probe) const {
    auto& mask = ctx.mask;
    if (given.mask) {
      if (given.mask->scalar_type() == at::kBool)
        mask.allowed = *given.mask;
      else
        ctx.bias = ctx.bias.defined() ? ctx.bias + *given.mask : *given.mask;
    }
    if (!given.padding) return;
    const auto& padding = *given.padding;
    TORCH_CHECK(padding.dim() == 2 && padding.scalar_type() == at::kBool,
                "key_padding_mask must be bool [B,S], true where there is no token; is ",
                padding.scalar_type(), " ", padding.sizes());
    const int64_t B = x.size(0), past = ctx.cache ? ctx.cache->length() : 0;
    const int64_t S = ctx.memory.defined() ? ctx.memory.size(1) : past + x.size(1);
    TORCH_CHECK(padding.size(0) == B && padding.size(1) == S, "key_padding_mask must be [", B, ", ",
                S, "], is ", padding.sizes());
    const auto there = padding.logical_not();
    const bool own = !ctx.memory.defined();
    if (own) probe.rows = there.narrow(1, past, x.size(1)).unsqueeze(1);  // [B,1,T]
    const auto length = there.sum(1);                                     // [B]
    const auto first = at::arange(S, length.options()).unsqueeze(0) < length.unsqueeze(1);
    if (past == 0 && first.equal(there)) {
      mask.key_length = length;
      if (own) mask.query_length = length;
      return;
    }
    mask.allowed = both_allowed(mask.allowed, there.view({B, 1, 1, S}));
  }

  bool causal_;
  int64_t window_;
  std::optional<Rotary> rotary_;
  std::shared_ptr<AttentionHeads> heads_;
};

// A layer as `headlab convert` takes it.
TrainedLayer trained(const Layer& layer) {
  const auto& heads = layer.heads();
  TORCH_CHECK(heads.made_of(), "these heads are not made of a kind");
  NamedTensors weights;
  for (const auto& [name, tensor] : module_tensors(heads)) weights[name] = tensor.detach().cpu();
  return {.name = "the layer",
          .attention = *heads.made_of(),
          .shape = heads.whole_shape(),
          .demands = {.causal = layer.causal()},
          .weights = std::move(weights)};
}

py::tuple converted(const Conversion& conversion) {
  const auto block = conversion.attention ? to_yaml(*conversion.attention) : "";
  return py::make_tuple(block, conversion.weights, conversion.error);
}

Init init_of(const std::string& name) {
  if (name == "gpt2") return Init::kGpt2;
  if (name == "plain") return Init::kPlain;
  if (name == "xavier") return Init::kXavier;
  throw ConfigError("init: must be gpt2, plain or xavier, is '" + name + "'");
}

}  // namespace

void bind_heads(py::module_& module) {
  module.def("kinds", &head_names);
  module.def("summary", [](const std::string& kind) { return head_kind(kind).summary; });

  py::class_<LayerCache, std::shared_ptr<LayerCache>>(module, "Cache")
      .def(py::init<>())
      .def_property_readonly("length", &LayerCache::length)
      .def_property_readonly("bytes", &LayerCache::bytes)
      .def("select", &LayerCache::select)
      .def("clear", &LayerCache::clear);

  py::class_<Layer, std::shared_ptr<Layer>>(module, "Heads")
      .def(py::init([](const std::string& kind, const std::string& options, const std::string& file,
                       int64_t d_model, int64_t heads, int64_t head_dim, int64_t kv_heads,
                       double dropout, int64_t layer, int64_t layers, int64_t context,
                       const std::string& site, const std::string& init, bool causal,
                       int64_t window, std::optional<double> rope_base,
                       const std::string& rope_layout, double rope_fraction) {
             std::optional<Rope> rope;
             if (rope_base) rope = Rope{*rope_base, rope_fraction, rope_layout};
             HeadShape shape{.d_model = d_model,
                             .heads = heads,
                             .head_dim = head_dim,
                             .kv_heads = kv_heads,
                             .dropout = dropout,
                             .layer = layer,
                             .layers = layers,
                             .context = context,
                             .site = site,
                             .init = init_of(init)};
             const HeadDemands demands{
                 .causal = causal, .window = window > 0, .rotary = rope.has_value()};
             return std::make_shared<Layer>(kind, options, file, shape, demands, window, rope);
           }),
           py::kw_only(), py::arg("kind"), py::arg("options"), py::arg("file"), py::arg("d_model"),
           py::arg("heads"), py::arg("head_dim"), py::arg("kv_heads"), py::arg("dropout"),
           py::arg("layer"), py::arg("layers"), py::arg("context"), py::arg("site"),
           py::arg("init"), py::arg("causal"), py::arg("window"), py::arg("rope_base"),
           py::arg("rope_layout"), py::arg("rope_fraction"))
      .def(
          "forward",
          [](Layer& layer, const Tensor& x, OptionalTensor memory, OptionalTensor padding,
             OptionalTensor mask, OptionalTensor bias, OptionalTensor positions,
             OptionalTensor gates, OptionalTensor noise, OptionalTensor tokens,
             std::shared_ptr<LayerCache> cache, bool statistics, bool maps, const py::object& hook,
             const std::string& backend) {
            Layer::Given given{.memory = std::move(memory),
                               .padding = std::move(padding),
                               .mask = std::move(mask),
                               .bias = std::move(bias),
                               .positions = std::move(positions),
                               .gates = std::move(gates),
                               .noise = std::move(noise),
                               .tokens = std::move(tokens),
                               .cache = std::move(cache),
                               .statistics = statistics,
                               .maps = maps,
                               .hook = output_hook(hook),
                               .backend = backend};
            Layer::Result result;
            {
              const py::gil_scoped_release others_may_run;
              result = layer.forward(x, given);
            }
            return py::make_tuple(result.y, result.gates, result.aux, result.statistics,
                                  result.map);
          },
          py::arg("x"), py::kw_only(), py::arg("memory"), py::arg("key_padding_mask"),
          py::arg("attn_mask"), py::arg("bias"), py::arg("positions"), py::arg("gates"),
          py::arg("noise"), py::arg("tokens"), py::arg("cache"), py::arg("statistics"),
          py::arg("maps"), py::arg("hook"), py::arg("backend"))
      .def("parameters", [](const Layer& layer) { return parameters_of(layer.heads()); })
      .def("buffers", [](const Layer& layer) { return buffers_of(layer.heads()); })
      .def("train", [](Layer& layer, bool on) { layer.heads().train(on); })
      .def("mask_heads",
           [](Layer& layer, const std::vector<int64_t>& heads) { layer.heads().mask_heads(heads); })
      .def("slice", [](const Layer& layer) { return std::make_shared<Layer>(layer.slice()); })
      .def("load", &Layer::load)
      .def("after_step", [](Layer& layer) { layer.heads().after_step(); })
      .def_property_readonly("head_ids",
                             [](const Layer& layer) { return layer.heads().head_ids(); })
      .def_property_readonly("alive", [](const Layer& layer) { return layer.heads().alive(); })
      .def_property_readonly("value_width",
                             [](const Layer& layer) { return layer.heads().value_width(); });

  module.def("to_grouped", [](const Layer& layer, int64_t kv_heads) {
    return converted(to_grouped(trained(layer), kv_heads));
  });
  module.def("to_collaborative", [](const Layer& layer, std::optional<int64_t> shared_dim) {
    return converted(to_collaborative(trained(layer), shared_dim));
  });
  module.def("options", [](const std::string& kind) {
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string>> all;
    for (const auto& f : describe_block(*head_kind(kind).options()))
      all.emplace_back(f.name, f.type, f.default_text, f.limits, f.help);
    return all;
  });
  module.def("traits", [](const std::string& kind, const std::string& options) {
    const auto traits = kind_block(kind, options, "").as<HeadOptions>().traits();
    return py::dict(py::arg("causal") = traits.causal,
                    py::arg("bidirectional") = traits.bidirectional,
                    py::arg("cross") = traits.cross, py::arg("decodes") = traits.decodes,
                    py::arg("grouped") = traits.grouped, py::arg("rotary") = traits.rotary,
                    py::arg("windows") = traits.windows, py::arg("biases") = traits.biases);
  });
}

}  // namespace headlab
