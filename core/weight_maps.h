// The option `map:` of kinds whose paper leaves open what turns scores into weights
// (core/attention/weight_map.h), and the same options for the kinds that are named after one map.
#pragma once

#include <optional>
#include <string>

#include "core/config/alternatives.h"
#include "core/projected_heads.h"

namespace headlab {

// What a map learns, if anything: a number of each head, the layer's parameter of that name [H].
enum class Learns { kNothing, kSink, kAlpha };

struct MapOptions : Block {
  void visit(Fields&) override {}
  virtual WeightMap map() const { return {}; }
  virtual Learns learns() const { return Learns::kNothing; }
  virtual bool decodes() const { return true; }
  // A kind's traits with this map.
  HeadTraits limit(HeadTraits traits) const;
};

// A logit of each head that takes part in its softmax and has no value: learned, as in gpt-oss, or
// the same number for all; 0 is "off by one" (torch's add_zero_attn).
struct SinkMap : MapOptions {
  WordOrNumber sink{{"learned"}};

  void visit(Fields& f) override;
  WeightMap map() const override;
  Learns learns() const override { return sink.number() ? Learns::kNothing : Learns::kSink; }
};

struct EntmaxMap : MapOptions {
  double alpha = 1.5;
  bool learn_alpha = false;

  void visit(Fields& f) override;
  WeightMap map() const override;
  Learns learns() const override { return learn_alpha ? Learns::kAlpha : Learns::kNothing; }
};

struct SigmoidMap : MapOptions {
  WordOrNumber offset{{"length"}};
  std::string normalize = "none";

  void visit(Fields& f) override;
  WeightMap map() const override;
  bool decodes() const override { return offset.number().has_value(); }
};

struct SoftpickMap : MapOptions {
  double eps = 1e-8;

  void visit(Fields& f) override;
  WeightMap map() const override;
};

// `map: sigmoid`, or `map: {kind: sigmoid, offset: -4.2}`.
const KindRegistry& map_registry();
class MapBlock : public KindBlock {
 public:
  MapBlock() : KindBlock(map_registry(), "softmax") {}
  const MapOptions& options() const { return as<MapOptions>(); }
  // The softmax goes without saying: settings without a map stay what they were.
  ConfigNode write() const override;
  ConfigNode write_minimal() const override { return write(); }
};
inline constexpr const char* kMapHelp = "what turns scores into weights";

// The options of mha, and its map.
struct MappedOptions : MhaOptions {
  MapBlock map;

  void visit(Fields& f) override;
  HeadTraits traits() const override { return map.options().limit(MhaOptions::traits()); }
  const MapOptions* map_options() const override { return &map.options(); }
};

// Multi-head attention with one map, whose options stand beside mha's.
template <class Map, class Others = MhaOptions>
struct FixedMapOptions : Others {
  Map map;

  void visit(Fields& f) override {
    Others::visit(f);
    map.visit(f);
  }
  HeadTraits traits() const override { return map.limit(Others::traits()); }
  const MapOptions* map_options() const override { return &map; }
};

template <class KindOptions>
class MapHeads : public ProjectedHeads<KindOptions> {
 public:
  using ProjectedHeads<KindOptions>::ProjectedHeads;

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto q = this->queries(x, call);                          // [B,H,T,d]
    const auto k = this->keys(x, call), v = this->values(x, call);  // [B,Hkv,S,d]
    const auto heads = attend(q, k, v, call, this->scale());        // [B,H,T,d]
    return {.y = this->output(heads, call)};                        // [B,T,D]
  }
};

}  // namespace headlab
