#include "experiments/data/tasks/pair_recall.h"

#include <fmt/format.h>

#include <map>

#include "experiments/data/accuracies.h"

namespace headlab {

void AnswerOptions::visit(Fields& f) {
  SyntheticOptions::visit(f);
  f("targets", targets,
    "what training asks: every next token, or answers alone, as an evaluation always does",
    one_of({"next", "answers"}));
}

void PairRecallOptions::visit(Fields& f) {
  AnswerOptions::visit(f);
  f("noise_symbols", noise_symbols, "of the symbols, those that only noise has", at_least(0));
  f("noise", noise, "chance of a pair to be noise", between(0, 1));
}

void PairRecallOptions::check(const Complain& complain) const {
  if (context % 2 == 0 || context < 3)
    complain("context", "must be odd and at least 3: pairs, and the key of the last one");
  if (halves().n < 2)
    complain("symbols", fmt::format("must be at least 2, a key and a value, beside {} of noise",
                                    noise_symbols));
  if (noise > 0 && noise_symbols == 0)
    complain("noise_symbols", "must be at least 1 where there is noise");
}

PairRecall::PairRecall(const Options& options)
    : RuleTask(options), options_(options), halves_(options.halves()) {}

const Task& PairRecall::task() const { return prediction_by_class(); }

std::vector<std::string> PairRecall::token_texts() const {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < symbols(); ++id)
    texts.push_back(id < halves_.n ? halves_.text(id) : fmt::format("n{}", id - halves_.n));
  return texts;
}

std::optional<Answers> PairRecall::answers(const Batch&) const {
  return drawn_between(halves_.keys(), halves_.n, "values");
}

std::vector<int64_t> PairRecall::label(const RuleExample& example, bool evaluated) const {
  const auto& ids = example.ids;
  const int64_t T = context();
  const bool answers_only = evaluated || options_.answers_only();
  std::map<int64_t, int64_t> value_of;
  std::vector<int64_t> targets(T, kIgnored);
  for (int64_t t = 0; t < T; ++t) {
    const bool asks = t % 2 == 0 && halves_.is_key(ids[t]);
    const auto known = asks ? value_of.find(ids[t]) : value_of.end();
    if (known != value_of.end()) {
      targets[t] = known->second;
    } else if (t == T - 1) {
      refuse_place(t, fmt::format("{} is no key that was shown before", ids[t]));
    } else {
      if (asks) value_of[ids[t]] = ids[t + 1];
      if (!answers_only) targets[t] = ids[t + 1];
    }
  }
  return targets;
}

RuleExample PairRecall::draw(Draws& draws, bool) const {
  const int64_t T = context(), before = T / 2;  // pairs before the last
  const int64_t spared = options_.noise > 0 ? draws.below(before) : 0;
  const auto noise = [&] { return halves_.n + draws.below(options_.noise_symbols); };
  std::map<int64_t, int64_t> value_of;
  std::vector<int64_t> ids, shown;
  for (int64_t pair = 0; pair < before; ++pair) {
    if (options_.noise > 0 && pair != spared && draws.unit() < options_.noise) {
      ids.push_back(noise());
      ids.push_back(noise());
      continue;
    }
    const int64_t key = draws.below(halves_.keys());
    if (!value_of.contains(key)) {
      value_of[key] = halves_.keys() + draws.below(halves_.values());
      shown.push_back(key);
    }
    ids.push_back(key);
    ids.push_back(value_of[key]);
  }
  ids.push_back(shown[draws.below(std::ssize(shown))]);
  const int64_t last = value_of[ids.back()];
  return {.ids = std::move(ids), .last = last};
}

}  // namespace headlab
