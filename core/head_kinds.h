// The kinds of heads by name: how one registers itself, what it may be asked, and how a layer of it
// is built; and the maps of scores to weights, which many kinds leave open.
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <type_traits>
#include <vector>

#include "core/config/config.h"
#include "core/heads.h"

namespace headlab {

struct GateTarget;

// What a model or a case asks of its layer.
struct HeadDemands {
  bool causal = false, bidirectional = false, window = false, rotary = false, bias = false,
       cross = false;
};

// Parameters of a kind, and how they begin by `init_weights: paper` and by `host`.
struct InitDifference {
  std::string parameters, paper, host;
};
using InitDifferences = std::vector<InitDifference>;

// Options of a kind: a plain struct with one `visit`.
struct HeadOptions : Block {
  // paper: as the kind's authors begin. host: projections as those of plain heads in the same model
  // (HeadShape.init), what the kind adds where it changes the least. make_heads() tells the layer
  // by HeadShape.init_as_host.
  std::string init_weights = "paper";

  void visit(Fields&) override {}
  void visit_all(Fields& f) final;
  // Where the two differ; empty: nowhere. nullopt: the kind has no host initialisation,
  // and check_layer() refuses it.
  virtual std::optional<InitDifferences> init_differences() const { return {}; }
  virtual HeadTraits traits() const { return {}; }
  // What is wrong with the options in a layer of this shape, of which this is asked.
  virtual void check_shape(const HeadShape&, const HeadDemands&, const Complain&) const {}
  // What the layer reads of what earlier ones offer, so that the model tells these to.
  virtual LinkParts reads() const { return {}; }
  // A number of open heads that the layer asks of its model; null: none.
  virtual const GateTarget* gate_target() const { return nullptr; }
};

// Complains where the options do not fit the shape, or the kind's traits not the demands.
void check_layer(const KindBlock& block, const HeadShape& shape, const HeadDemands& demands,
                 const Complain& complain);
// What of `demands` a kind does not promise, a sentence each: "'linformer' heads cannot be causal".
std::vector<std::string> unmet_demands(const KindBlock& block, const HeadShape& shape,
                                       const HeadDemands& demands);

// What turns scores into weights (core/attention/maps/map.h), as the option `map` of kinds whose
// paper leaves it open. Registered in the file of the kind that is named after it.
struct MapOptions : Block {
  std::string kind;  // the name that it was found by in the registry; "": a kind's own

  // What the map learns: a number of each head, the layer's parameter of that name [H].
  struct Learned {
    const char* name;
    Tensor start;
  };
  void visit(Fields&) override {}
  virtual MapPtr map() const { return plain_softmax(); }
  virtual std::optional<Learned> learned(int64_t /*heads*/) const { return {}; }
  // A kind's traits with this map.
  HeadTraits limit(HeadTraits traits) const;
};

const KindRegistry& map_registry();
void register_map(const char* name, std::function<std::shared_ptr<MapOptions>()> options,
                  const std::source_location& where);

template <class Options>
struct RegisterMap {
  explicit RegisterMap(const char* name,
                       const std::source_location& where = std::source_location::current()) {
    register_map(
        name, [] { return std::make_shared<Options>(); }, where);
  }
};

// `map: sigmoid`, or `map: {kind: sigmoid, offset: -4.2}`.
class MapBlock : public KindBlock {
 public:
  MapBlock() : KindBlock(map_registry(), "softmax") {}
  const MapOptions& options() const { return as<MapOptions>(); }
  // The softmax goes without saying: settings without a map stay what they were.
  ConfigNode write() const override;
  ConfigNode write_minimal() const override { return write(); }
};
inline constexpr const char* kMapHelp = "what turns scores into weights";

// What a kind tells of a pass by arrays that it left, without a layer: statistics, and how arrays
// of these names report them. Most kinds have none.
struct RecordedStatistics {
  std::vector<Statistic> table;
  void (*report)(HeadObserver&, const std::map<std::string, Tensor>& recorded) = nullptr;
};

// One registered kind.
struct HeadKind {
  std::string name, summary;
  std::function<std::shared_ptr<HeadOptions>()> options;
  std::function<std::shared_ptr<AttentionHeads>(const HeadShape&, const HeadOptions&)> make;
  RecordedStatistics recorded = {};
};

std::vector<std::string> head_names();               // sorted
const HeadKind& head_kind(const std::string& name);  // ConfigError with the nearest name
const KindRegistry& head_registry();                 // for `attention: {kind: ...}` in a config
void register_heads(HeadKind kind, const std::source_location& where);

// Builds a layer of the kind and options in `block`; what check_layer() says is a ConfigError with
// place.
std::shared_ptr<AttentionHeads> make_heads(const KindBlock& block, const HeadShape& shape,
                                           const HeadDemands& demands = {});

// Heads(shape, Heads::Options) that slice() can build again.
template <class Heads>
std::shared_ptr<AttentionHeads> build_heads(const HeadShape& shape,
                                            const typename Heads::Options& options) {
  auto heads = std::make_shared<Heads>(shape, options);
  heads->set_maker(
      [options](const HeadShape& other) { return build_heads<Heads>(other, options); });
  return heads;
}

// What a kind must have, each in words where it lacks it.
template <class Heads>
consteval bool names_options() {
  if constexpr (requires { typename Heads::Options; })
    return std::is_base_of_v<HeadOptions, typename Heads::Options>;
  return false;
}
template <class Heads>
consteval bool is_built_from_options() {
  if constexpr (names_options<Heads>())
    return std::is_constructible_v<Heads, const HeadShape&, const typename Heads::Options&>;
  return false;
}

// An object of this type in a variant's file registers it: Heads(shape, Heads::Options).
template <class Heads>
struct RegisterHeads {
  static constexpr bool kComputes =
      std::is_base_of_v<AttentionHeads, Heads> && !std::is_abstract_v<Heads>;
  static_assert(kComputes,
                "a kind of heads derives from AttentionHeads, or ProjectedHeads, and overrides "
                "HeadOutput compute(const Tensor& x, const HeadCall& call)");
  static_assert(!kComputes || names_options<Heads>(),
                "a kind of heads says what its options are: using Options = a struct that derives "
                "from HeadOptions, or MhaOptions");
  static_assert(!kComputes || !names_options<Heads>() || is_built_from_options<Heads>(),
                "a kind of heads has a public constructor (const HeadShape&, const Options&)");

  RegisterHeads(const char* name, const char* summary, const RecordedStatistics& recorded = {},
                const std::source_location& where = std::source_location::current()) {
    if constexpr (kComputes && is_built_from_options<Heads>()) {  // else it is told above, once
      using Options = typename Heads::Options;
      register_heads({name, summary, [] { return std::make_shared<Options>(); },
                      [](const HeadShape& shape, const HeadOptions& options) {
                        return build_heads<Heads>(shape, dynamic_cast<const Options&>(options));
                      },
                      recorded},
                     where);
    }
  }
};

}  // namespace headlab
