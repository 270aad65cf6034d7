#include "experiments/commands/head_facts.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include "core/observe/probe.h"
#include "core/torch.h"
#include "headlab_build.h"

namespace headlab {
namespace {

constexpr int64_t kWidth = 16, kHeads = 4, kTokens = 16;

// Not the first layer: some kinds look at the one before.
std::shared_ptr<AttentionHeads> example(const std::string& kind) {
  HeadShape shape;
  shape.d_model = kWidth, shape.heads = shape.kv_heads = kHeads, shape.head_dim = kWidth / kHeads;
  shape.context = kTokens, shape.layer = 1, shape.layers = 2;
  return make_heads(KindBlock(head_registry(), kind), shape);
}

std::vector<std::pair<const char*, bool>> promises_of(const HeadTraits& t) {
  return {{"independent heads", t.independent},
          {"rows sum to one", t.rows_sum_to_one},
          {"map over tokens", t.map == HeadMap::kTokens},
          {"windows", t.windows},
          {"biases on scores", t.biases},
          {"masks of single pairs", t.masks == HeadMasks::kAny},
          {"causal", t.causal},
          {"decodes with a cache", t.decodes},
          {"cross-attention", t.cross},
          {"grouped kv heads", t.grouped},
          {"rotary positions", t.rotary}};
}

std::string opening_of(const std::string& kind) {
  for (const auto& source : build::kVariantDigests)
    if (source.name == kind) return std::string(source.opening);
  return "";
}

// arXiv numbers, 2312.04927, in the order of their first appearance.
std::vector<std::string> papers_in(const std::string& text) {
  constexpr size_t kLength = 10, kPoint = 4;
  const auto digit = [&](size_t at) {
    return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
  };
  const auto in_word = [&](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
  };
  const auto is_number = [&](size_t from) {
    for (size_t i = 0; i < kLength; ++i)
      if (i == kPoint ? text[from + i] != '.' : !digit(from + i)) return false;
    return (from == 0 || !in_word(from - 1)) && !in_word(from + kLength);
  };
  std::vector<std::string> found;
  for (size_t from = 0; from + kLength <= text.size(); ++from)
    if (is_number(from) &&
        std::find(found.begin(), found.end(), text.substr(from, kLength)) == found.end())
      found.push_back(text.substr(from, kLength));
  return found;
}

// The statistics of every kind that a pass of this layer leaves without a value.
std::vector<std::string> missing_statistics(AttentionHeads& heads) {
  const torch::NoGradGuard no_gradient;
  HeadProbe probe;
  probe.statistics = probe.matches = true;
  probe.tokens = at::arange(kTokens).remainder(kTokens / 2).unsqueeze(0);       // [1,T] two copies
  probe.classes = at::arange(kTokens).remainder(4).to(at::kByte).unsqueeze(0);  // [1,T]
  HeadContext context;
  context.mask.causal = !heads.traits().bidirectional;
  context.observer = &probe;
  heads.eval();
  heads.forward(at::linspace(-1, 1, kTokens * kWidth).sin().view({1, kTokens, kWidth}), context);
  const auto values = probe.values(heads.shape().layer);
  std::vector<std::string> missing;
  for (const auto& statistic : statistic_table()) {
    const auto found = values.find(statistic.name);
    const bool some =
        found != values.end() && std::any_of(found->second.begin(), found->second.end(),
                                             [](double value) { return !std::isnan(value); });
    if (!some) missing.push_back(statistic.name);
  }
  return missing;
}

}  // namespace

HeadFacts facts_of(const HeadKind& kind) {
  HeadFacts facts;
  facts.name = kind.name, facts.summary = kind.summary;
  facts.opening = opening_of(kind.name);
  facts.papers = papers_in(facts.opening);
  const auto options = kind.options();
  facts.options = describe_block(*options);
  facts.init = options->init_differences();
  const auto heads = example(kind.name);
  facts.promises = promises_of(heads->traits());
  for (const auto& parameter : heads->named_parameters())
    facts.parameters.push_back(parameter.key());
  facts.own = heads->statistics();
  facts.without = missing_statistics(*heads);
  return facts;
}

}  // namespace headlab
