#include "core/head_kinds.h"

#include <fmt/format.h>

#include "core/config/registry.h"

namespace headlab {

namespace {

Registry<HeadKind>& registry() {
  static Registry<HeadKind> kinds("kind of heads");
  return kinds;
}

struct NamedMap {
  std::string name;
  std::function<std::shared_ptr<MapOptions>()> options;
};
Registry<NamedMap>& maps() {
  static auto all = [] {
    Registry<NamedMap> all("map");
    all.add({"softmax", [] { return std::make_shared<MapOptions>(); }});
    return all;
  }();
  return all;
}

}  // namespace

const KindRegistry& map_registry() { return maps(); }
void register_map(const char* name, std::function<std::shared_ptr<MapOptions>()> options,
                  const std::source_location& where) {
  const auto named = [kind = std::string(name), options = std::move(options)] {
    auto made = options();
    made->kind = kind;
    return made;
  };
  maps().add({name, named}, where);
}

HeadTraits MapOptions::limit(HeadTraits traits) const {
  const auto own = map();
  traits.rows_sum_to_one &= own->rows_sum_to_one();
  traits.decodes &= !own->cannot_decode();
  return traits;
}

ConfigNode MapBlock::write() const {
  if (kind() != "softmax") return KindBlock::write();
  ConfigNode none;
  none.kind = ConfigNode::Kind::kNull;
  return none;
}

void HeadOptions::visit_all(Fields& f) {
  visit(f);
  f("init_weights", init_weights,
    "weights begin as the kind's authors do, or as those of plain heads in this model",
    one_of({"paper", "host"}));
}

void register_heads(HeadKind kind, const std::source_location& where) {
  registry().add(std::move(kind), where);
}
std::vector<std::string> head_names() { return registry().names(); }
const HeadKind& head_kind(const std::string& name) { return registry().at(name); }
const KindRegistry& head_registry() { return registry(); }

void check_layer(const KindBlock& block, const HeadShape& shape, const HeadDemands& demands,
                 const Complain& complain) {
  const auto& options = block.as<HeadOptions>();
  options.check_shape(shape, demands, complain);
  if (options.init_weights == "host" && !options.init_differences())
    complain("init_weights",
             fmt::format("'{}' heads have no host initialisation; choose paper, or override "
                         "init_differences() in the kind's options",
                         block.kind()));
  for (const auto& unmet : unmet_demands(block, shape, demands)) complain("", unmet);
}

std::vector<std::string> unmet_demands(const KindBlock& block, const HeadShape& shape,
                                       const HeadDemands& demands) {
  const auto traits = block.as<HeadOptions>().traits();
  std::vector<std::string> unmet;
  auto demand = [&](bool asked, bool promised, const char* what) {
    if (asked && !promised) unmet.push_back(fmt::format("'{}' heads {}", block.kind(), what));
  };
  demand(demands.causal, traits.causal, "cannot be causal");
  demand(demands.bidirectional, traits.bidirectional, "must be causal");
  demand(demands.window, traits.windows, "know no window");
  demand(demands.rotary, traits.rotary, "know no rotary positions");
  demand(demands.bias, traits.biases, "know no bias on their scores");
  demand(demands.cross, traits.cross, "have no cross-attention");
  demand(shape.offers.first_values || shape.offers.keys_values, traits.plain_projections,
         "have no plain projections to offer to later layers");
  demand(shape.kv_heads != shape.heads, traits.grouped,
         fmt::format("are not grouped: kv_heads must be heads, {}", shape.heads).c_str());
  return unmet;
}

std::shared_ptr<AttentionHeads> make_heads(const KindBlock& block, const HeadShape& shape,
                                           const HeadDemands& demands) {
  Problems problems;
  check_layer(block, shape, demands, [&](const std::string& field, const std::string& what) {
    problems.add(block.place(field), field.empty() ? block.path() : block.path() + "." + field,
                 what);
  });
  problems.raise();
  const auto& options = block.as<HeadOptions>();
  auto own = shape;
  own.init_as_host |= options.init_weights == "host";
  auto heads = head_kind(block.kind()).make(own, options);
  heads->set_made_of(std::make_shared<KindBlock>(block), shape);
  return heads;
}

}  // namespace headlab
