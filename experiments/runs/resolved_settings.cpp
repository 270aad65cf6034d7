#include "experiments/runs/resolved_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "core/config/config.h"
#include "core/projected_heads.h"
#include "experiments/data/source.h"
#include "experiments/files/remove_key.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/statistic_names.h"

namespace headlab {
namespace {

using NodeKind = ConfigNode::Kind;
using Shapes = std::vector<HeadShape>;

bool is_mapping_node(const ConfigNode* node) {
  return node != nullptr && node->kind == NodeKind::kMapping;
}

std::string text_at(const ConfigNode& node, const char* key) {
  const auto* value = node.find(key);
  return value ? value->text : "";
}

// Paths that can be read again: as they are written, from where that leads to the same file.
void keep_paths(ConfigNode& node) {
  if (!node.absolute.empty()) {
    const auto end = "/" + node.text;
    if (node.absolute.ends_with(end))
      node.place.base = node.absolute.substr(0, node.absolute.size() - end.size() + 1);
    else
      node.text = node.absolute;
  }
  for (auto& item : node.items) keep_paths(item);
  for (auto& [key, value] : node.entries) keep_paths(value);
}

// --- heads

// What kinds of core leave open; the others derive their own.
void derive(Block& options, const HeadShape& shape) {
  if (auto* own = dynamic_cast<DerivedDefaults<HeadShape>*>(&options)) own->derive(shape);
  auto* biases = dynamic_cast<BiasOptions*>(&options);
  if (!biases) return;
  const auto projections = biases->projections();
  biases->qkv_bias = projections.qkv_bias, biases->o_bias = projections.o_bias;
  if (auto* mha = dynamic_cast<MhaOptions*>(&options); mha && !mha->scale)
    mha->scale = 1 / std::sqrt(projections.qk_width.value_or(shape.head_dim));
}

// Whether options of a kind come to the same with and without this key.
bool follows(const KindRegistry& kinds, const std::string& kind, ConfigNode node,
             const std::string& key, const std::function<void(Block&)>& derived) {
  const auto value = *node.find(key);
  remove_key(node, key);
  remove_key(node, "kind");
  const auto options = kinds.options(kind);
  Problems problems;
  read_block(*options, node, "", problems);
  if (!problems.empty()) return false;
  derived(*options);
  const auto written = write_block(*options);
  const auto* found = written.find(key);
  return found != nullptr && *found == value;
}

// Keys that are written though no default stands there: those of options that derive.
std::vector<std::string> optional_keys(const KindRegistry& kinds, const ConfigNode& block) {
  std::vector<std::string> keys;
  const auto kind = text_at(block, "kind");
  const auto usual = write_block(*kinds.options(kind));
  for (const auto& [key, value] : block.entries)
    if (key != "kind" && !usual.find(key)) keys.push_back(key);
  return keys;
}

// `under`: heads that this block is merged over where they are of its kind, so that what they say
// must be said here again; null: none.
void settle_heads(ConfigNode& block, const Shapes& shapes, const ConfigNode* under) {
  const auto& kinds = head_registry();
  const auto kind = text_at(block, "kind");
  if (under && text_at(*under, "kind") != kind) under = nullptr;
  if (auto* inner = block.find("inner"); is_mapping_node(inner) && inner->find("kind"))
    settle_heads(*inner, shapes, under ? under->find("inner") : nullptr);
  for (const auto& key : optional_keys(kinds, block)) {
    if (under && under->find(key)) continue;
    if (std::all_of(shapes.begin(), shapes.end(), [&](const HeadShape& shape) {
          return follows(kinds, kind, block, key, [&](Block& b) { derive(b, shape); });
        }))
      remove_key(block, key);
  }
}

// Layers with heads of their own: ranges in order, as few as can be.
void settle_ranges(ConfigNode& owner, const AttentionAt& at, const ConfigNode& under,
                   const Shapes& shapes) {
  struct Layers {
    int64_t first, last;
    ConfigNode heads;
  };
  std::vector<Layers> ranges;
  for (const auto& range : at.ranges()) {
    auto heads = range.heads.write();
    settle_heads(heads, shapes, &under);
    if (!(heads == under)) ranges.push_back({range.first, range.last, std::move(heads)});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Layers& a, const Layers& b) { return a.first < b.first; });
  ConfigNode node;
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto first = ranges[i].first;
    while (i + 1 < ranges.size() && ranges[i + 1].first == ranges[i].last + 1 &&
           ranges[i + 1].heads == ranges[i].heads)
      ++i;
    const auto last = ranges[i].last;
    node.set(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last),
             std::move(ranges[i].heads));
  }
  owner.set("attention_at", std::move(node));
}

// --- the model

// What every option of a stack that may be left open comes to.
std::string sizes_of_stacks(const KindBlock& model) {
  std::string text;
  for (const auto& stack : model.as<ModelOptions>().stacks()) {
    const auto shape = stack->shape(0);
    text += fmt::format("{} {} {} {} {} {} {} {}\n", stack->name(), stack->layers, shape.d_model,
                        shape.heads, shape.head_dim, shape.kv_heads, shape.dropout,
                        stack->hidden_width());
  }
  return text;
}

// Removes what follows from the rest of the model, until nothing more does.
void settle_sizes(ConfigNode& node, const KindBlock& model) {
  const auto wanted = sizes_of_stacks(model);
  const auto same_without = [&](const std::function<ConfigNode*(ConfigNode&)>& part,
                                const char* key) {
    auto tried = node;
    remove_key(*part(tried), key);
    KindBlock block(model_registry(), model.kind());
    Problems problems;
    block.read(tried, "model", problems);
    return problems.empty() && sizes_of_stacks(block) == wanted;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const char* name : {"", "encoder", "decoder"}) {
      const auto part = [&](ConfigNode& of) { return *name ? of.find(name) : &of; };
      if (!is_mapping_node(part(node))) continue;
      std::vector<const char*> keys{"kv_heads", "head_dim", "d_ff", "attention_dropout"};
      if (*name) keys = {"kv_heads", "head_dim", "d_ff", "layers", "heads"};
      for (const char* key : keys)
        if (part(node)->find(key) && same_without(part, key)) {
          remove_key(*part(node), key);
          changed = true;
        }
    }
  }
}

// A list that is cycled over the layers.
void settle_window(ConfigNode& model, int64_t layers) {
  auto* window = model.find("window");
  if (window == nullptr || window->items.empty()) return;
  const auto all = window->items;
  const auto repeats = [&](size_t period) {
    for (int64_t layer = 0; layer < layers; ++layer)
      if (!(all[layer % all.size()] == all[layer % all.size() % period])) return false;
    return true;
  };
  size_t period = 1;
  while (period < all.size() && !repeats(period)) ++period;
  window->items.resize(period);
}

struct StackShapes {
  Shapes self, cross;
};

void settle_model(ConfigNode& node, const Experiment& experiment) {
  const auto& model = experiment.model;
  const auto* shared = dynamic_cast<const StackOptions*>(&model.options());
  auto* attention = node.find("attention");
  if (!shared || !attention) return;  // a model of one's own
  settle_sizes(node, model);
  attention = node.find("attention");

  // Only of a decoder is it known before the data are read.
  const int64_t context = model.kind() == "decoder" ? experiment.data.as<DataOptions>().context : 0;
  std::map<std::string, StackShapes> shapes;
  Shapes all;
  int64_t layers = 0;
  for (const auto& stack : shared->stacks()) {
    auto& of = shapes[stack->name()];
    of.self.push_back(stack->shape(0, context));
    if (stack->cross()) of.cross.push_back(stack->cross_shape(0, context));
    for (const auto* some : {&of.self, &of.cross})
      all.insert(all.end(), some->begin(), some->end());
    layers = std::max(layers, stack->layers);
  }
  settle_heads(*attention, all, nullptr);
  settle_ranges(node, shared->attention_at, *attention, all);
  settle_window(node, layers);
  for (auto& [name, of] : shapes) {
    auto* part = name.empty() ? nullptr : node.find(name);
    if (!is_mapping_node(part)) continue;
    for (const auto& [key, of_site] : {std::pair("attention", &of.self), {"cross", &of.cross}})
      if (auto* own = part->find(key); is_mapping_node(own)) {
        settle_heads(*own, *of_site, attention);
        const bool as_shared = own == part->find("cross") || shared->attention_at.ranges().empty();
        if (as_shared && *own == *attention) remove_key(*part, key);
      }
  }
}

// --- the rest

void settle_training(ConfigNode& train, const TrainOptions& options) {
  if (options.min_lr && *options.min_lr == options.lr / 10) remove_key(train, "min_lr");
  if (options.epochs) return;  // how many updates these are is only known of the data
  const int64_t steps = options.total_steps(0);
  if (options.decay_steps == steps) remove_key(train, "decay_steps");
  if (const auto count = options.warmup.of(steps); count > 0 || !options.warmup.is_share())
    train.set("warmup", write_integer(count));
}

void settle_statistics(ConfigNode& log, const LogOptions& options) {
  ConfigNode list;
  list.kind = NodeKind::kSequence;
  if (const auto names = options.statistics(); names != default_statistics())
    for (const auto& name : names) list.items.push_back(write_text(name));
  log.set("stats", std::move(list));
}

void settle_data(ConfigNode& data) {
  const auto kind = text_at(data, "kind");
  const auto derived = [](Block& options) {
    if (auto* own = dynamic_cast<DerivedDefaults<>*>(&options)) own->derive();
  };
  for (const auto& key : optional_keys(data_registry(), data))
    if (follows(data_registry(), kind, data, key, derived)) remove_key(data, key);
}

}  // namespace

Experiment resolved(Experiment experiment) {
  auto node = write_block(experiment, Paths::kWritten);
  keep_paths(node);
  settle_model(*node.find("model"), experiment);
  settle_training(*node.find("train"), experiment.train);
  settle_statistics(*node.find("log"), experiment.log);
  settle_data(*node.find("data"));
  Experiment settled;
  read_config(settled, node);
  write_block(settled);  // defaults that are derived by being visited
  return settled;
}

}  // namespace headlab
