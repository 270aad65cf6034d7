#include "core/weight_maps.h"

#include "core/attention/weight_map_statistics.h"
#include "core/config/registry.h"
#include "core/torch.h"

namespace headlab {
namespace {

// Near alpha 1 the gradient of entmax is ill-conditioned.
constexpr double kLeastAlpha = 1.01;

struct RegisteredMap {
  std::string name;
  std::function<std::shared_ptr<Block>()> options;
};

template <class Map>
RegisteredMap named(const char* name) {
  return {name, [] { return std::make_shared<Map>(); }};
}

}  // namespace

const KindRegistry& map_registry() {
  static const auto maps = [] {
    Registry<RegisteredMap> all("map");
    for (auto& map :
         {named<MapOptions>("softmax"), named<EntmaxMap>("entmax"), named<SigmoidMap>("sigmoid"),
          named<SoftpickMap>("softpick"), named<SinkMap>("sink")})
      all.add(map);
    return all;
  }();
  return maps;
}

ConfigNode MapBlock::write() const {
  if (kind() != "softmax") return KindBlock::write();
  ConfigNode none;
  none.kind = ConfigNode::Kind::kNull;
  return none;
}

HeadTraits MapOptions::limit(HeadTraits traits) const {
  traits.rows_sum_to_one &= map().rows_sum_to_one() && learns() != Learns::kSink;
  traits.decodes &= decodes();
  return traits;
}

void SinkMap::visit(Fields& f) {
  f("sink", sink, "score of the sink, which has no value: learned of each head, or a number");
}
WeightMap SinkMap::map() const {
  return {.sink = sink.number() ? at::full({1}, *sink.number()) : Tensor()};
}

void EntmaxMap::visit(Fields& f) {
  f("alpha", alpha, "of all heads: 1 is the softmax, 2 sparsemax; larger is sparser", at_least(1));
  f("learn_alpha", learn_alpha,
    "each head learns its alpha, between 1.01 and 2; then `alpha` is not used");
}
WeightMap EntmaxMap::map() const { return {.kind = WeightMap::Kind::kEntmax, .alpha = alpha}; }

void SigmoidMap::visit(Fields& f) {
  f("offset", offset,
    "added to the scores: length = -ln of the number of keys; decoding needs a number, -ln of the "
    "training context");
  f("normalize", normalize, "divides row i by sqrt(i + 1), or by its length i + 1",
    one_of({"none", "sqrt", "length"}));
}
WeightMap SigmoidMap::map() const {
  using Divisor = WeightMap::Divisor;
  return {.kind = WeightMap::Kind::kSigmoid,
          .offset = offset.number(),
          .divisor = normalize == "none"   ? Divisor::kNone
                     : normalize == "sqrt" ? Divisor::kSqrt
                                           : Divisor::kLength};
}

void SoftpickMap::visit(Fields& f) {
  f("eps", eps, "added to the sum that a row is divided by", above(0));
}
WeightMap SoftpickMap::map() const { return {.kind = WeightMap::Kind::kSoftpick, .eps = eps}; }

void MappedOptions::visit(Fields& f) {
  MhaOptions::visit(f);
  f("map", map, kMapHelp);
}

void AttentionHeads::set_map(const MapOptions& options) {
  map_ = options.map();
  const auto of_heads = [&](const char* name, const Tensor& start) {
    learned_of_map_ = parameter(name, start, heads_along({0}));
  };
  if (options.learns() == Learns::kSink) of_heads("sink", at::randn({shape_.heads}) * 0.02);
  if (options.learns() == Learns::kAlpha) of_heads("alpha", at::randn({shape_.heads}));
}

WeightMap AttentionHeads::weight_map() const {
  auto map = map_;
  if (!learned_of_map_.defined()) return map;
  const auto raw = learned_of_map_.scalar_type() == at::kDouble ? learned_of_map_
                                                                : learned_of_map_.to(at::kFloat);
  if (map.kind == WeightMap::Kind::kEntmax)
    map.alphas = (1 + raw.sigmoid()).clamp_min(kLeastAlpha);
  else
    map.sink = raw;
  return map;
}

std::vector<Statistic> AttentionHeads::statistics() const {
  auto all = own_statistics();
  const auto of_map = map_statistics(weight_map());
  all.insert(all.end(), of_map.begin(), of_map.end());
  return all;
}

}  // namespace headlab
