#include "experiments/models/stack_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "experiments/files/config_file.h"
#include "experiments/models/gate_target.h"

namespace headlab {

void check_heads(int64_t d_model, int64_t heads, std::optional<int64_t> head_dim,
                 std::optional<int64_t> kv_heads, const Complain& complain) {
  if (!head_dim && d_model % heads != 0)
    complain("heads",
             fmt::format("{} heads do not divide d_model {}; choose a divisor or set head_dim",
                         heads, d_model));
  if (kv_heads && heads % *kv_heads != 0)
    complain("kv_heads",
             fmt::format("{} kv_heads do not divide heads {}; choose a divisor", *kv_heads, heads));
}
namespace {

ConfigNode kind_alone(const std::string& kind, const Place& place) {
  ConfigNode node;
  node.set("kind", write_text(kind));
  node.place = place;
  return node;
}

// What another writing of heads merges over. A wrong `attention` has been reported where it stands;
// here its kind is all that counts.
ConfigNode merge_base(const KindBlock& attention) {
  Problems reported;
  KindBlock copy = attention;
  if (attention.node().kind == ConfigNode::Kind::kMapping)
    copy.read(attention.node(), attention.path(), reported);
  const bool usable = reported.empty() && attention.node().kind == ConfigNode::Kind::kMapping;
  ConfigNode base = usable ? attention.node() : ConfigNode{};
  base.set("kind", write_text(attention.kind()));
  return base;
}

ConfigNode merged_over(const ConfigNode& base, const ConfigNode& written) {
  const bool word = written.kind == ConfigNode::Kind::kScalar;
  auto merged = merge_config(base, word ? kind_alone(written.text, written.place) : written);
  merged.place = written.place;
  return merged;
}

ConfigNode null_node() {
  ConfigNode node;
  node.kind = ConfigNode::Kind::kNull;
  return node;
}

}  // namespace

const AttentionAt::Range* AttentionAt::find(int64_t layer) const {
  return find_range(ranges_, layer);
}

void PartAttention::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  own_.emplace(head_registry(), attention_->kind());
  own_->read(merged_over(merge_base(*attention_), node), path, problems);
}

ConfigNode PartAttention::write() const { return own_ ? own_->write() : null_node(); }
ConfigNode PartAttention::write_minimal() const {
  return own_ ? own_->write_minimal() : null_node();
}

void AttentionAt::read(const ConfigNode& node, const std::string& path, Problems& problems) {
  if (node.kind != ConfigNode::Kind::kMapping)
    return problems.add(node.place, path, "must be a mapping of layers to kinds of heads");
  const auto base = merge_base(*attention_);
  for (const auto& [key, written] : node.entries) {
    const auto here = fmt::format("{}.{}", path, key);
    Range range{{key}, KindBlock(head_registry(), attention_->kind()), written};
    if (!range.read(written, here, problems)) continue;
    range.heads.read(merged_over(base, written), here, problems);
    ranges_.push_back(std::move(range));
  }
}

ConfigNode AttentionAt::write() const {
  ConfigNode node;
  for (const auto& range : ranges_) node.set(range.key, range.heads.write());
  return node;
}

ConfigNode AttentionAt::write_minimal() const {
  ConfigNode node;
  for (const auto& range : ranges_) node.set(range.key, range.written);
  return node;
}

void AttentionAt::forms(Forms& f) const {
  f.entries(kLayersPattern, [](Forms& heads) { heads.kinds(head_registry(), ""); });
}

void StackOptions::visit(Fields& f) {
  f("layers", layers, "transformer blocks", between(1, 4096));
  f("d_model", d_model, "width of the residual stream", at_least(1));
  f("heads", heads, "attention heads a layer", at_least(1));
  f("kv_heads", kv_heads, "key/value heads (default: heads)", at_least(1));
  f("head_dim", head_dim, "width of a head (default: d_model / heads)", at_least(1));
  f("d_ff", d_ff, "width of the MLP (default: 4 d_model)", at_least(1));
  f("norm", norm, "layer norm or RMS norm", one_of({"layer", "rms"}));
  f("norm_eps", norm_eps, "epsilon of the norms", above(0));
  f("mlp", mlp, "activation of the MLP; gelu is the exact one (erf)",
    one_of({"gelu", "gelu_tanh", "swiglu", "relu", "silu"}));
  f("pre_norm", pre_norm, "norms before attention and MLP; false: after the residual sum");
  f("position", position, "learned, sinusoidal, rope, alibi, relative or none, with its options");
  f("position_at", position_at, "other positions in some layers, \"0\" or \"2-5\": none, or rope");
  f("bias", bias, "biases of norms and MLP; heads have their own");
  f("dropout", dropout, "on embeddings and what each layer adds", from_below(0, 1));
  f("attention_dropout", attention_dropout, "on the attention weights (default: dropout)",
    from_below(0, 1));
  f("activation_dropout", activation_dropout, "within the MLP, behind its activation",
    from_below(0, 1));
  f("window", window, "keys that a query sees, a list is cycled over layers; 0: all", at_least(0));
  f("attention", attention, "kind of heads and its options");
  attention_at.merge_over(attention);
  f("attention_at", attention_at, "other heads in some layers, \"0\" or \"2-5\"");
}

void StackOptions::check(const Complain& complain) const {
  bool sound = true;
  const auto note = [&](const std::string& field, const std::string& what) {
    sound = false;
    complain(field, what);
  };
  check_heads(d_model, heads, head_dim, kv_heads, note);
  if (position->kind == "sinusoidal" && d_model % 2 != 0)
    note("position", fmt::format("sinusoidal needs an even d_model, not {}", d_model));
  if (window.empty()) note("window", "is empty; 0 means no window");
  if (static_cast<int64_t>(window.size()) > layers)
    note("window", fmt::format("has {} entries for {} layers", window.size(), layers));
  check_ranges("attention_at", attention_at.ranges(), layers, note);
  check_ranges("position_at", position_at.ranges(), layers, note);
  position_at.check(position, note);
  if (!sound) return;

  std::set<std::pair<std::string, std::string>> reported;  // layers share their problems
  const auto of_block = [&](const std::string& block) {
    return [&, block](const std::string& field, const std::string& what) {
      const std::string full = field.empty() ? block : fmt::format("{}.{}", block, field);
      if (reported.emplace(full, what).second) complain(full, what);
    };
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto* range = attention_at.find(layer);
    check_layer(attention_of(layer), shape(layer), demands(layer),
                of_block(range ? "attention_at." + range->key : "attention"));
    if (cross()) check_layer(*cross(), cross_shape(layer), {.cross = true}, of_block(kCrossSite));
  }
  if (name().empty()) check_gate_targets(gate_targets(), complain);
}

void StackOptions::check_alone(const DataShape& data, const Complain& complain) const {
  if (data.source_vocabulary > 0)
    complain("kind",
             "reads one text, and would not see what is to be translated; seq2seq reads "
             "both");
}

std::vector<LayerTarget> StackOptions::gate_targets() const {
  std::vector<LayerTarget> targets;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto* range = attention_at.find(layer);
    targets.push_back({attention_of(layer).as<HeadOptions>().gate_target(), heads,
                       range ? "attention_at." + range->key : "attention"});
    if (cross()) targets.push_back({cross()->as<HeadOptions>().gate_target(), heads, kCrossSite});
  }
  return targets;
}

HeadShape StackOptions::shape(int64_t layer, int64_t context) const {
  HeadShape shape;
  shape.d_model = d_model;
  shape.heads = heads;
  shape.head_dim = head_dim.value_or(d_model / heads);
  shape.kv_heads = kv_heads.value_or(heads);
  shape.dropout = attention_dropout.value_or(dropout);
  shape.layer = layer;
  shape.layers = layers;
  shape.context = context;
  shape.site = site();
  shape.offers = offers(layer);
  if (layer > 0) shape.offered = attention_of(layer).as<HeadOptions>().reads();
  shape.init = init();
  return shape;
}

LinkParts StackOptions::offers(int64_t layer) const {
  const auto reads = [&](int64_t at) { return attention_of(at).as<HeadOptions>().reads(); };
  // The first layer offers its values; keys, values and state come from the last layer before a
  // reader that does not read them itself, or from the first.
  LinkParts offers;
  for (int64_t later = layer + 1; later < layers; ++later)
    offers.first_values |= layer == 0 && reads(later).first_values;
  const auto before_readers = [&](bool LinkParts::*part) {
    const bool has_own = layer == 0 || !(reads(layer).*part);
    return has_own && layer + 1 < layers && reads(layer + 1).*part;
  };
  offers.keys_values = before_readers(&LinkParts::keys_values);
  offers.state = before_readers(&LinkParts::state);
  return offers;
}

HeadShape StackOptions::cross_shape(int64_t layer, int64_t context) const {
  auto cross = shape(layer, context);
  cross.site = kCrossSite;
  cross.offers = cross.offered = {};
  return cross;
}

HeadDemands StackOptions::demands(int64_t layer) const {
  return {.bidirectional = true,
          .window = window_of(layer) > 0,
          .rotary = position_of(layer).kind == "rope",
          .bias = position->kind == "alibi" || position->kind == "relative"};
}

const KindBlock& StackOptions::attention_of(int64_t layer) const {
  const auto* range = attention_at.find(layer);
  return range ? range->heads : attention;
}

std::string kind_of_heads(const ModelOptions& options, const std::string& site, int64_t layer) {
  for (const auto& stack : options.stacks()) {
    if (stack->site() == site) return stack->attention_of(layer).kind();
    if (site == kCrossSite && stack->cross()) return stack->cross()->kind();
  }
  return "?";
}

}  // namespace headlab
