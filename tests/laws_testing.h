// What the laws of all kinds of heads are written with.
#pragma once

#include <algorithm>

#include "experiments/files/field_table.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

constexpr int64_t B = 2, T = 7;

// One kind, small.
struct Subject {
  std::string kind, options;  // ", map: sink"
  HeadShape shape = small_shape();
  std::shared_ptr<AttentionHeads> heads;
  HeadTraits traits;

  explicit Subject(const std::string& name, const std::string& given = "")
      : kind(name), options(given) {
    heads = make(shape);
    traits = heads->traits();
  }
  std::shared_ptr<AttentionHeads> make(const HeadShape& other) const {
    return make_layer(kind, other, options);
  }
  HeadContext natural() const { return traits.causal ? causal() : HeadContext{}; }
  // With as many keys a query as it can have.
  HeadContext widest() const { return traits.bidirectional ? HeadContext{} : causal(); }
  bool weighs_tokens() const { return traits.map == HeadMap::kTokens; }
  bool masks_pairs() const { return traits.masks == HeadMasks::kAny; }
  Tensor y(const Tensor& x, const HeadContext& ctx) const { return heads->forward(x, ctx).y; }
};

// By default mta is mha, and in so short sequences so are kinds that choose blocks.
inline std::string options_in_laws(const std::string& kind) {
  if (kind == "mta")
    return ", pre_kernel: [3, 5], post_kernel: [2, 3], pre: true, post: 2, norm: true, gate: head";
  if (kind == "moba") return ", block: 2, selected: 2";
  if (kind == "nsa")
    return ", block: 2, compress_block: 2, stride: 1, selected: 2, first_blocks: 0, "
           "local_blocks: 1, window_tokens: 3";
  return "";
}

// What turns scores into weights, in kinds that leave it open: all of it in mha, of the others two
// each, in turn, unless `all` are asked for.
inline std::vector<std::string> maps_in_laws(const std::string& kind, bool all_maps) {
  std::vector<std::string> maps;
  for (const auto& map : map_registry().names()) {
    if (map == "softmax") continue;
    maps.push_back(map);
    if (map == "entmax") maps.emplace_back("{kind: entmax, learn_alpha: true}");
    if (map == "sigmoid") maps.emplace_back("{kind: sigmoid, offset: -1.9, normalize: sqrt}");
    if (map == "sink") maps.emplace_back("{kind: sink, sink: 0.5}");
  }
  const auto names = head_names();
  const auto place = std::find(names.begin(), names.end(), kind) - names.begin();
  std::vector<std::string> all;
  for (const auto& field : describe_block(*head_registry().options(kind)))
    for (size_t n = 0; n < maps.size(); ++n) {
      if (!all_maps && kind != "mha" && (n + 2 * place) % maps.size() > 1) continue;
      if (field.name == "map") all.push_back(", map: " + maps[n]);
      const bool has_mha = std::find(names.begin(), names.end(), "mha") != names.end();
      if (field.name == "inner" && has_mha)
        all.push_back(", inner: {kind: mha, map: " + maps[n] + "}");
    }
  return all;
}

// Runs `law` for every registered kind, and for its combinations with maps, as a section of its
// own.
template <class Law>
inline void for_every_kind(Law law, bool all_maps = false) {
  for (const auto& kind : head_names()) {
    DYNAMIC_SECTION(kind) { law(Subject(kind, options_in_laws(kind))); }
    for (const auto& options : maps_in_laws(kind, all_maps)) DYNAMIC_SECTION(kind << options) {
        law(Subject(kind, options));
      }
  }
}

// Options of a kind that change the types of queries and keys under autocast.
inline std::vector<std::string> norms_in_laws(const Subject& s) {
  std::vector<std::string> all{""};
  if (s.options.find("map: ") != std::string::npos) return all;
  const bool by_name = s.kind == "forgetting";
  for (const auto& field : describe_block(*head_registry().options(s.kind)))
    if (field.name == "qk_norm") all.push_back(by_name ? ", qk_norm: per_head" : ", qk_norm: true");
  if (s.kind == "gated") all.push_back(", gate: sigmoid");
  return all;
}

// In float32, with weights that are the same in bfloat16, and maps neither flat nor of one key.
inline std::shared_ptr<AttentionHeads> rounded_layer(const Subject& s, const std::string& options) {
  const auto heads = make_layer(s.kind, s.shape, s.options + options, 3);
  at::NoGradGuard no_grad;
  for (const auto& p : heads->named_parameters()) {
    const double factor = p.key().ends_with("norm.weight") ? 1 : 0.5;
    p.value().copy_((factor * p.value()).to(at::kBFloat16));
  }
  heads->to(at::kFloat);
  return heads;
}

// |got - want| / |want|, of all numbers together.
inline double error_of(const Tensor& got, const Tensor& want) {
  const auto right = want.to(at::kCPU, at::kDouble);
  return ((got.to(at::kCPU, at::kDouble) - right).norm() / right.norm()).item<double>();
}

// A kind whose traits do not promise the law has none to break.
inline void not_promised() { SUCCEED("not promised"); }

}  // namespace headlab::testing
