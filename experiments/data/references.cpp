#include "experiments/data/references.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <utility>

#include "core/torch.h"
#include "experiments/data/ngrams.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

// Tokens or pixels of an example, about.
int64_t size_of_example(const DataSource& data) {
  const auto shape = data.shape();
  return std::max<int64_t>(
      1, shape.context + shape.source_context + shape.channels * shape.height * shape.width);
}

// All examples of a split, in batches; `visit` returns whether to go on.
void each_batch(const DataSource& data, Split split,
                const std::function<bool(const Batch& batch)>& visit) {
  constexpr int64_t kNumbers = 1 << 16;  // of a batch
  const int64_t count = std::max<int64_t>(1, kNumbers / size_of_example(data));
  const int64_t all = data.examples(split);
  for (int64_t first = 0; first < all; first += count)
    if (!visit(data.eval_batch(split, first, std::min(count, all - first)))) return;
}

bool predicts_one_of_several(const Task& task) {
  return &task.metrics() == &prediction_task().metrics();
}

// What is counted of a batch: its targets; where words are hidden every word, hidden or not.
Tensor counted_tokens(const Batch& batch, const Answers& answers, bool hides_words) {
  if (!hides_words) return batch.targets.contiguous();
  const auto words = at::where(batch.targets.ge(0), batch.targets, batch.ids);  // [B,T]
  const auto are_words = answers.among.index({words});
  return words.masked_fill(are_words.logical_not(), kIgnored).contiguous();
}

// The model of the training part; null where there is none, or counts say nothing.
std::unique_ptr<const NgramModel> counted_model(const DataSource& data, const Answers& answers) {
  const auto shape = data.shape();
  if (answers.drawn_alike || data.examples(Split::kTrain) == 0) return nullptr;
  const int64_t vocabulary = answers.among.size(-1);
  NgramCounts counts(vocabulary, /*pairs=*/shape.targets_follow);
  each_batch(data, Split::kTrain, [&](const Batch& batch) {
    const auto tokens = counted_tokens(batch, answers, shape.mask.has_value());
    const int64_t* token = tokens.data_ptr<int64_t>();
    const int64_t* before = counts.has_pairs() ? batch.ids.data_ptr<int64_t>() : nullptr;
    for (int64_t i = 0; i < tokens.numel() && !counts.full(); ++i)
      if (token[i] >= 0) counts.add(before ? before[i] : 0, token[i]);
    return !counts.full();
  });
  if (counts.total() == 0) return nullptr;
  return std::make_unique<NgramModel>(std::move(counts), answers.among.sum().item<int64_t>());
}

// A reference while it is measured.
class Measured {
 public:
  Measured(const Task& task, Reference reference) : task_(task), reference_(std::move(reference)) {}

  // `loss` and `right`, the chance to be right, of every target of the batch; of those that are not
  // scored anything. named: bool [V], the classes that it names at all.
  void add(const Batch& batch, const Tensor& loss, const Tensor& right, const Tensor& named) {
    const auto scored = task_.is_scored(batch);
    const auto sum = [&](const Tensor& values) {
      return values.masked_fill(scored.logical_not(), 0).sum(at::kDouble).item<double>();
    };
    loss_ += sum(loss), right_ += sum(right);
    const auto counts = task_.counts_of_guesses(right, named, batch);
    counts_ = counts_.defined() ? counts_ + counts : counts;
  }

  Reference mean_over(int64_t tokens) const {
    auto reference = reference_;
    const auto all = static_cast<double>(std::max<int64_t>(1, tokens));
    reference.values = {{task_.metrics()[0], loss_ / all}, {task_.metrics()[1], right_ / all}};
    if (!counts_.defined()) return reference;
    const auto values = task_.summarised(counts_);
    for (size_t n = 0; n < values.size(); ++n)
      reference.values.push_back({task_.summaries()[n], values[n]});
    return reference;
  }

 private:
  const Task& task_;
  Reference reference_;
  double loss_ = 0, right_ = 0;
  Tensor counts_;
};

void add_guess(Measured& measured, const Batch& batch, const Answers& answers) {
  const auto among = answers.among.sum(-1).to(at::kDouble);  // [], [B,1], [1,T] or [B,T]
  const auto count = among.expand_as(batch.targets);
  const auto named = answers.among.reshape({-1, answers.among.size(-1)}).any(0);  // [V]
  measured.add(batch, count.log(), count.reciprocal(), named);
}

// `p` of a target behind the id at its place, and the token that is named there.
void add_counted(Measured& measured, const Batch& batch, int64_t vocabulary,
                 const std::function<double(int64_t id, int64_t target)>& p,
                 const std::function<int64_t(int64_t id)>& named) {
  const auto targets = batch.targets.contiguous();
  const auto loss = at::zeros(targets.sizes(), at::kDouble), right = at::zeros_like(loss);
  const auto names = at::zeros({vocabulary}, at::kBool);
  const auto ids = batch.ids.defined() ? batch.ids : targets;  // images have none, nor bigrams
  const int64_t *target = targets.data_ptr<int64_t>(), *id = ids.data_ptr<int64_t>();
  auto *losses = loss.data_ptr<double>(), *rights = right.data_ptr<double>();
  for (int64_t i = 0; i < targets.numel(); ++i) {
    if (target[i] < 0) continue;
    const int64_t name = named(id[i]);
    losses[i] = -std::log(p(id[i], target[i]));
    rights[i] = name == target[i] ? 1 : 0;
    names.data_ptr<bool>()[name] = true;
  }
  measured.add(batch, loss, right, names);
}

// Which of the values that an example shows a target is, by its place alone; counted over training
// examples, one more of each.
class PlaceModel {
 public:
  // example: any of the data; there may be no training part where it shows no values.
  static std::optional<PlaceModel> of(const DataSource& data, const Batch& example) {
    if (!data.shown_values(example)) return std::nullopt;
    constexpr int64_t kExamples = 4096;
    const int64_t all = data.epoch_examples();
    const auto batch = all > 0 ? data.epoch_batch(0, 0, std::min(all, kExamples))
                               : data.train_batch(0, 0, 0, kExamples);
    const auto shown = *data.shown_values(batch);
    PlaceModel model;
    const int64_t P = shown.values.size(1);
    std::vector<Tensor> of_pairs;
    for (int64_t p = 0; p < P; ++p)
      of_pairs.push_back(shown.of_target.eq(p).sum(0).to(at::kDouble) + 1);  // [T]
    const auto counts = at::stack(of_pairs, 1);                              // [T,P]
    model.p_ = counts / counts.sum(1, /*keepdim=*/true);
    model.how_ = fmt::format(
        "the likeliest of {} pairs at a target's place, counted over {} training examples", P,
        with_commas(batch.examples()));
    return model;
  }
  const std::string& how() const { return how_; }

  // Of each target the probability of its value, and whether the likeliest is named, [B,T].
  std::pair<Tensor, Tensor> judged(const DataSource& data, const Batch& batch) const {
    const auto shown = *data.shown_values(batch);
    const auto is_target = shown.values.unsqueeze(1).eq(batch.targets.unsqueeze(2));  // [B,T,P]
    const auto p = (p_.unsqueeze(0) * is_target).sum(2);                              // [B,T]
    const auto named = shown.values.index_select(1, p_.argmax(1));                    // [B,T]
    return {p, named.eq(batch.targets)};
  }

 private:
  Tensor p_;  // [T,P]
  std::string how_;
};

void add_placed(Measured& measured, const PlaceModel& model, const DataSource& data,
                const Batch& batch, int64_t vocabulary) {
  const auto [p, right] = model.judged(data, batch);
  measured.add(batch, -p.clamp_min(1e-300).log(), right.to(at::kDouble),
               at::ones({vocabulary}, at::kBool));
}

// Inlined into its callers, g++ 12 raises a false alarm in it.
[[gnu::noinline]] std::string counted_text(const NgramModel& model) {
  return with_commas(model.counted());
}

Reference unigram_of(const DataSource& data, const NgramModel& model) {
  const auto counted = counted_text(model);
  if (data.shape().classes > 0)
    return {"commonest",
            fmt::format("class counts of {} training examples, plus one; the commonest class "
                        "is {}",
                        counted, model.likeliest())};
  return {"unigram", "counts of " + counted + " training tokens, plus one"};
}

Reference bigram_of(const NgramModel& model) {
  return {"bigram", fmt::format("{:.4f} × counted pairs of {} training tokens + {:.4f} × the "
                                "unigram",
                                model.weight(), counted_text(model), 1 - model.weight())};
}

}  // namespace

std::optional<double> Reference::value(const std::string& metric) const {
  for (const auto& one : values)
    if (one.name == metric) return one.value;
  return std::nullopt;
}

const Reference* References::find(const std::string& name) const {
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Reference& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

const Reference* References::guess(const std::string& metric, bool higher_is_better) const {
  const auto *chance = find(kChance), *place = find(kPlace);
  if (!chance || !place) return chance;
  const auto a = chance->value(metric), b = place->value(metric);
  return b && (!a || (higher_is_better ? *b > *a : *b < *a)) ? place : chance;
}

References references_of(const DataSource& data, Split split) {
  References found{.split = split, .examples = data.examples(split)};
  const Task& task = data.task();
  if (!predicts_one_of_several(task) || found.examples == 0) return found;
  at::NoGradGuard no_grad;
  const auto example = data.eval_batch(split, 0, 1);
  const auto first = answers_of(data, example);
  const auto model = counted_model(data, first);
  Measured guess(task, {kChance, "a guess: " + first.of});
  const auto places = PlaceModel::of(data, example);
  std::optional<Measured> place, unigram, bigram;
  if (places) place.emplace(task, Reference{kPlace, places->how()});
  if (model) unigram.emplace(task, unigram_of(data, *model));
  if (model && model->has_pairs()) bigram.emplace(task, bigram_of(*model));
  const int64_t vocabulary = first.among.size(-1);
  each_batch(data, split, [&](const Batch& batch) {
    found.tokens += task.scored(batch).item<int64_t>();
    add_guess(guess, batch, answers_of(data, batch));
    if (place) add_placed(*place, *places, data, batch, vocabulary);
    if (unigram)
      add_counted(
          *unigram, batch, vocabulary, [&](int64_t, int64_t target) { return model->p(target); },
          [&](int64_t) { return model->likeliest(); });
    if (bigram)
      add_counted(
          *bigram, batch, vocabulary,
          [&](int64_t id, int64_t target) { return model->p(id, target); },
          [&](int64_t id) { return model->likeliest(id); });
    return true;
  });
  if (found.tokens == 0) return found;
  found.all.push_back(guess.mean_over(found.tokens));
  for (const auto* counted : {&place, &unigram, &bigram})
    if (*counted) found.all.push_back((*counted)->mean_over(found.tokens));
  return found;
}

bool references_are_quick(const DataSource& data, Split split) {
  constexpr int64_t kQuick = 1 << 24;
  return (data.examples(split) + data.examples(Split::kTrain)) <= kQuick / size_of_example(data);
}

nlohmann::ordered_json references_json(const References& references) {
  if (references.all.empty()) return nullptr;
  nlohmann::ordered_json json, units;
  for (const auto& one : references.all) {
    auto& entry = json[one.name];
    for (const auto& metric : one.values) {
      entry[metric.name] = metric.value;
      units[metric.name] = metric.units;
    }
    entry["comment"] = one.how;
  }
  json["units"] = units;
  json["measured_on"] = {{"split", split_name(references.split)},
                         {"examples", references.examples},
                         {"tokens", references.tokens}};
  return json;
}

}  // namespace headlab
