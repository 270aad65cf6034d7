#include "experiments/analysis/syntax_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/head_measurements.h"
#include "experiments/models/site_probes.h"

namespace headlab {
namespace {

const std::vector<std::string> kDirections{"dependent_row", "head_column"};

using Sentence = EncodedTreebank::Sentence;

std::optional<int64_t> begin_token(const DataSource& data) {
  const auto classes = data.token_classes();
  const auto found = std::ranges::find(classes, kCls);
  return found == classes.end() ? std::nullopt : std::optional<int64_t>(found - classes.begin());
}

Dependencies dependencies_of(const TreebankSentence& sentence,
                             const std::map<std::string, int64_t>& relations) {
  Dependencies words;
  for (const auto& word : sentence.words) {
    words.heads.push_back(word.head);
    words.relations.push_back(relations.at(word.relation));
  }
  return words;
}

// The maps of one batch of sentences, and whose heads they are.
class MapReader {
 public:
  MapReader(Model& model, const SiteHeads& heads, const Compute& compute)
      : model_(model), compute_(compute), heads_(heads), there_(heads.alive()), probes_(model) {
    for (int64_t l = 0; l < heads_.layers(); ++l)
      if (!has_map(l)) there_[l].fill_(false);
    probes_.at(heads_.name()).patterns = true;
  }

  const Tensor& there() const { return there_; }  // bool [L,H]: heads that have a map

  void run(const std::vector<const Sentence*>& batch) {
    const auto longer = [](const auto* a, const auto* b) { return a->ids.size() < b->ids.size(); };
    const int64_t T = std::ssize((*std::max_element(batch.begin(), batch.end(), longer))->ids);
    auto ids = at::zeros({std::ssize(batch), T}, at::kLong);
    auto length = at::empty({std::ssize(batch)}, at::kLong);
    for (int64_t b = 0; b < std::ssize(batch); ++b) {
      const int64_t n = std::ssize(batch[b]->ids);
      ids[b].narrow(0, 0, n).copy_(at::tensor(batch[b]->ids, at::kLong));
      length[b] = n;
    }
    probes_.reset();
    model_.forward(Batch{.ids = ids, .length = length}.to(compute_.device),
                   {.observer = &probes_, .backend = compute_.backend});
  }

  // Of example b of the batch, between its words: [L,H,n,n], 0 for heads without a map.
  Tensor words(int64_t b, const Sentence& sentence) const {
    const int64_t T = std::ssize(sentence.ids), n = std::ssize(sentence.dependencies.heads);
    const auto word = at::tensor(sentence.words, at::kLong);
    auto maps = at::zeros({there_.size(0), there_.size(1), n, n}, at::kDouble);
    for (const auto& [key, pattern] : probes_.at(heads_.name()).layer_patterns()) {
      const int64_t layer = key.layer;
      if (!has_map(layer)) continue;
      const auto own = pattern.p[b].narrow(-2, 0, T).narrow(-1, 0, T).to(at::kCPU);  // [h,T,T]
      const auto heads = at::tensor(heads_.layer(layer).head_ids(), at::kLong);
      maps[layer].index_copy_(0, heads, align_words(own, word, n));
    }
    return maps;
  }

 private:
  bool has_map(int64_t layer) const { return heads_.layer(layer).traits().map == HeadMap::kTokens; }

  Model& model_;
  Compute compute_;
  SiteHeads heads_;
  Tensor there_;
  SiteProbes probes_;
};

class Syntax : public HeadMeasurement {
 public:
  using HeadMeasurement::HeadMeasurement;

  bool of_examples() const override { return false; }

  std::vector<std::string> names() const override {
    if (!setup_.reads_ids_alone()) return {};
    return {"accuracy",       "accuracy_head_row", "baseline",      "baseline_offset",
            "baseline_place", "relation_count",    "best_relation", "best_direction",
            "best_accuracy",  "best_gain"};
  }

  // What is wrong with the treebank is said before the model works.
  void start(const std::vector<std::string>&, HeadProbe&) override {
    treebank_ = encode_treebank(read_treebank(setup_.options.treebank), *setup_.run.data,
                                setup_.run.model->context());
  }

  void finish(LabelledGroup& to) override {
    if (const auto scores =
            score_syntax(*setup_.run.model, setup_.heads, treebank_, {}, setup_.compute))
      add_syntax(to, *scores);
  }

 private:
  EncodedTreebank treebank_;
};

}  // namespace

EncodedTreebank encode_treebank(const std::vector<TreebankSentence>& treebank,
                                const DataSource& data, int64_t context) {
  const auto tokenizer = data.tokenizer();
  if (!tokenizer)
    throw DataError("the run's data have no text, so its model cannot read a treebank");
  EncodedTreebank encoded;
  encoded.relations = relations_of(treebank);
  std::map<std::string, int64_t> places;
  for (const auto& relation : encoded.relations) places.emplace(relation, places.size());
  const auto begin = begin_token(data);
  for (const auto& sentence : treebank) {
    Sentence made;
    std::vector<TextRange> ranges;
    try {
      auto encoding = tokenizer->encode(sentence.text, "the treebank");
      made.ids = std::move(encoding.ids), ranges = std::move(encoding.ranges);
    } catch (const DataError&) {
      ++encoded.left_out.not_encoded;
      continue;
    }
    const auto words = words_of_tokens(sentence, ranges);
    if (!words) {
      ++encoded.left_out.not_aligned;
      continue;
    }
    made.words = *words;
    if (begin) {
      made.ids.insert(made.ids.begin(), *begin);
      made.words.insert(made.words.begin(), -1);
    }
    if (std::ssize(made.ids) > context) {
      ++encoded.left_out.too_long;
      continue;
    }
    made.dependencies = dependencies_of(sentence, places);
    encoded.sentences.push_back(std::move(made));
  }
  if (const auto& left = encoded.left_out; encoded.sentences.empty())
    throw DataError(fmt::format(
        "the model can read none of the treebank's {} sentences: {} have characters that its data "
        "lack, {} have words that are no whole tokens, {} are longer than its context of {} tokens",
        treebank.size(), left.not_encoded, left.not_aligned, left.too_long, context));
  return encoded;
}

std::optional<SyntaxScores> score_syntax(Model& model, const SiteHeads& site,
                                         const EncodedTreebank& treebank,
                                         const SyntaxOptions& options, const Compute& compute) {
  TORCH_CHECK(!model.is_training(), "the model must be in eval mode");
  at::NoGradGuard no_grad;
  MapReader reader(model, site, compute);
  if (!reader.there().any().item<bool>()) return std::nullopt;
  const int64_t relations = std::ssize(treebank.relations);
  DependencyScores heads(reader.there().size(0), reader.there().size(1), relations);
  DependencyBaselines baselines(relations, options.offsets);
  std::vector<const Sentence*> all;
  for (const auto& sentence : treebank.sentences) all.push_back(&sentence);
  // Sentences of like length together: less padding, and sums of whole numbers know no order.
  std::stable_sort(all.begin(), all.end(),
                   [](const auto* a, const auto* b) { return a->ids.size() < b->ids.size(); });
  for (size_t first = 0; first < all.size(); first += options.batch) {
    const auto last = std::min(first + options.batch, all.size());
    const std::vector<const Sentence*> batch(all.begin() + first, all.begin() + last);
    reader.run(batch);
    for (int64_t b = 0; b < std::ssize(batch); ++b) {
      heads.add(reader.words(b, *batch[b]), batch[b]->dependencies);
      baselines.add(batch[b]->dependencies);
    }
  }
  const auto absent = reader.there().logical_not().unsqueeze(-1);  // [L,H,1]
  return SyntaxScores{.options = options,
                      .relations = treebank.relations,
                      .sentences = std::ssize(treebank.sentences),
                      .left_out = treebank.left_out,
                      .accuracy = heads.accuracy().masked_fill(absent, kNaN),
                      .accuracy_head_row = heads.accuracy_head_row().masked_fill(absent, kNaN),
                      .baseline = baselines.fixed_offset(),
                      .baseline_offset = baselines.relative_place(),
                      .count = baselines.count()};
}

BestRelations best_relations(const SyntaxScores& scores) {
  const int64_t R = std::ssize(scores.relations);
  const auto share = scores.baseline_offset[0];                                    // [2,R]
  auto gain = scores.accuracy - share.unsqueeze(1).unsqueeze(1);                   // [2,L,H,R]
  auto left_out = scores.count < static_cast<double>(scores.options.least_cases);  // [R]
  for (int64_t r = 0; r < R; ++r)
    if (const auto& name = scores.relations[r]; name == "all" || name == "punct" || name == "root")
      left_out[r] = true;
  constexpr double kNone = -2;  // below any gain
  const auto known = gain.nan_to_num(kNone).masked_fill(left_out, kNone);
  // Ties: the direction, then the relation that comes first.
  const auto [most, place] = known.permute({1, 2, 0, 3}).flatten(2).max(-1);  // [L,H]
  const auto none = most <= kNone;
  const auto accuracy = scores.accuracy.permute({1, 2, 0, 3}).flatten(2);  // [L,H,2R]
  const auto found = [&](const Tensor& t) { return t.to(at::kDouble).masked_fill(none, kNaN); };
  return {.relation = found(place.remainder(R)),
          .direction = found(place.floor_divide(R)),
          .accuracy = found(accuracy.gather(-1, place.unsqueeze(-1)).squeeze(-1)),
          .gain = found(most)};
}

void add_syntax(LabelledGroup& analysis, const SyntaxScores& scores) {
  add_head_axes(analysis, {"layer", "head"}, scores.accuracy.size(1), scores.accuracy.size(2));
  add_axis(analysis, {{"relation", "1", "dependency relation",
                       "label of a word's arc to its head; all: every word, punct and root too"},
                      std::ssize(scores.relations),
                      scores.relations});
  add_axis(analysis, {{"direction", "1", "where a head of attention predicts a word's head",
                       "dependent_row: argmax_j a[i,j]; head_column: argmax_j a[j,i]"},
                      std::ssize(kDirections),
                      kDirections});
  add_axis(analysis,
           {{"fixed_offset", "token", "predicted head minus word, in words", "of the baseline"},
            std::ssize(scores.options.offsets),
            {},
            scores.options.offsets});

  const auto add = [&](LogVariable variable, std::vector<std::string> dims,
                       const Tensor& values) -> LabelledArray& {
    return add_array(analysis, std::move(variable), std::move(dims), values);
  };
  const std::vector<std::string> by_head{"layer", "head"};
  add({"accuracy", "1", "share of words whose head is predicted",
       "right predictions / words of the relation; diagonal 0, special tokens dropped, "
       "subwords to words: columns summed, rows averaged; the root's is always wrong"},
      {"direction", "layer", "head", "relation"}, scores.accuracy);
  add({"accuracy_head_row", "1", "share of head words whose row finds a dependent",
       "argmax_j a[i,j] is a dependent of i by the relation; one case a head word"},
      {"layer", "head", "relation"}, scores.accuracy_head_row);
  add({"baseline", "1", "share of words whose head stands at a fixed offset",
       "prediction clip(i + offset, 0, n) for words 1..n, 0 the root (Clark et al. 2019)"},
      {"fixed_offset", "relation"}, scores.baseline);
  add({"baseline_offset", "1", "share of the commonest relative place",
       "of head - dependent and of dependent - head, without roots (Voita et al. 2019)"},
      {"direction", "relation"}, scores.baseline_offset[0]);
  add({"baseline_place", "token", "the commonest relative place, in words",
       "head - dependent, and dependent - head; ties: the nearer, then the negative one"},
      {"direction", "relation"}, scores.baseline_offset[1]);
  auto& counts =
      add({"relation_count", "1", "words of the relation", "in the sentences that were read"},
          {"relation"}, scores.count);
  const auto& left = scores.left_out;
  counts.about.counts = true;
  counts.count_attributes = {{"sentences", scores.sentences},
                             {"sentences_too_long", left.too_long},
                             {"sentences_not_encoded", left.not_encoded},
                             {"sentences_not_aligned", left.not_aligned}};
  const auto best = best_relations(scores);
  add({"best_relation", "1", "relation that the head predicts best, an index of `relation`",
       "largest best_gain; without all, punct, root and rare relations"},
      by_head, best.relation)
      .count_attributes = {{"least_cases", scores.options.least_cases}};
  add({"best_direction", "1", "its direction, an index of `direction`", "see best_relation"},
      by_head, best.direction);
  add({"best_accuracy", "1", "its accuracy", "see best_relation"}, by_head, best.accuracy);
  add({"best_gain", "1", "its accuracy above the commonest place",
       "accuracy - baseline_offset, largest over relations and directions"},
      by_head, best.gain);
}

std::unique_ptr<HeadMeasurement> syntax_measurement(const AnalysisSetup& setup) {
  return std::make_unique<Syntax>(setup);
}

}  // namespace headlab
