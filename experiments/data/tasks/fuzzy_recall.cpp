// MAD's fuzzy in-context recall (Poli et al., arXiv 2403.17844): keys and values are tuples of
// several symbols, and nothing but the kind of a symbol tells where one ends.
//
//   _ _ _ k2 k0 v5 | k1 v1 v4 v0 | k0 k2 k3 v2 | k2 k0 v5
//
// A key is an ordered tuple of distinct key symbols, as many as key_length in evaluations and from
// 1 to key_length in training; a value one of 1 to value_length value symbols. The probe is drawn
// first, stands somewhere in the sequence, and again at its end; its last symbol lies behind the
// last id. (In some of the sequences it was not shown before, and is to be guessed: the authors'
// place for it may lie behind the end.) Pads, the last symbol, stand in front.
#include <fmt/format.h>

#include <map>

#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

using Tuple = std::vector<int64_t>;

class FuzzyRecall : public RuleTask {
 public:
  struct Options : AnswerOptions {
    int64_t key_length = 3, value_length = 3;

    Options() { symbols = 16; }
    Halves halves() const { return {symbols - 1}; }
    void visit(Fields& f) override {
      AnswerOptions::visit(f);
      f("key_length", key_length, "symbols of a key: so many in evaluations, up to so many before",
        at_least(1));
      f("value_length", value_length, "most symbols of a value", at_least(1));
    }
    void check(const Complain& complain) const override {
      const auto most = [&](const char* field, int64_t length, int64_t symbols, const char* what) {
        if (length > symbols)
          complain(field, fmt::format("must be at most {}, the {} symbols", symbols, what));
      };
      most("key_length", key_length, halves().keys(), "key");
      most("value_length", value_length, halves().values(), "value");
      if (const int64_t pair = key_length + value_length; context <= 2 * pair)
        complain("context",
                 fmt::format("must be at least {}: two pairs, and a token", 2 * pair + 1));
    }
  };

  explicit FuzzyRecall(const Options& options)
      : RuleTask(options), options_(options), halves_(options.halves()) {}

  std::optional<Answers> answers(const Batch&) const override {
    return drawn_between(halves_.keys(), halves_.n, "values");
  }

  std::vector<std::string> token_texts() const override {
    auto texts = halves_.texts();
    texts.push_back("_");
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool evaluated) const override {
    if (!example.last) refuse_place(context(), "in.last, the token behind the last id, is missing");
    auto tokens = example.ids;
    tokens.push_back(*example.last);
    const int64_t end = std::ssize(tokens);
    const bool answers_only = evaluated || options_.answers_only();
    std::vector<int64_t> targets(context(), kIgnored);
    if (!answers_only) targets.assign(tokens.begin() + 1, tokens.end());
    std::map<Tuple, Tuple> value_of;
    int64_t t = 0;
    while (t < end && tokens[t] == halves_.n) ++t;
    while (t < end) {
      const auto key = run(tokens, t, true), value = run(tokens, t, false);
      const bool shown = !value_of.try_emplace(key, value).second;
      if (!shown && t < end) continue;
      for (int64_t j = t - std::ssize(value); j < t; ++j) targets[j - 1] = tokens[j];
    }
    return targets;
  }

 private:
  // The key's or value's symbols from place t on, which moves behind them.
  Tuple run(const std::vector<int64_t>& tokens, int64_t& t, bool key) const {
    Tuple tuple;
    const auto belongs = [&](int64_t id) {
      return key ? halves_.is_key(id) : halves_.is_value(id);
    };
    while (t < std::ssize(tokens) && belongs(tokens[t])) tuple.push_back(tokens[t++]);
    if (tuple.empty()) refuse_place(t, fmt::format("there is no {} here", key ? "key" : "value"));
    return tuple;
  }

  Tuple draw_key(Draws& draws, int64_t length) const {
    return draws.distinct(length, halves_.keys());
  }
  Tuple draw_value(Draws& draws, int64_t length) const {
    auto tuple = draws.distinct(length, halves_.values());
    for (auto& symbol : tuple) symbol += halves_.keys();
    return tuple;
  }

  RuleExample draw(Draws& draws, bool trained_on) const override {
    const int64_t T = context(), K = options_.key_length, L = options_.value_length;
    const auto key_length = [&] { return trained_on ? draws.between(1, K) : K; };
    const auto value_length = [&] { return draws.between(1, L); };
    const auto probe = draw_key(draws, key_length());
    std::map<Tuple, Tuple> value_of{{probe, draw_value(draws, value_length())}};
    const int64_t length = std::ssize(probe) + std::ssize(value_of[probe]);
    const int64_t place = draws.between(0, T - 2 * length - 1);
    std::vector<int64_t> tokens;
    const auto append = [&](const Tuple& key) {
      const auto& value = value_of.at(key);
      tokens.insert(tokens.end(), key.begin(), key.end());
      tokens.insert(tokens.end(), value.begin(), value.end());
    };
    bool shown = false;
    while (std::ssize(tokens) < T - length - K - L) {
      const int64_t a = key_length(), b = value_length();
      const bool due = !shown && std::ssize(tokens) >= place;
      const auto key = due ? probe : draw_key(draws, a);
      if (!value_of.contains(key)) value_of[key] = draw_value(draws, b);
      shown |= key == probe;
      append(key);
    }
    append(probe);
    tokens.insert(tokens.begin(), T + 1 - std::ssize(tokens), halves_.n);
    RuleExample example{.last = tokens.back()};
    tokens.pop_back();
    example.ids = std::move(tokens);
    return example;
  }

  Options options_;
  Halves halves_;
};

const RegisterData<FuzzyRecall> fuzzy_recall("fuzzy_recall",
                                             "pairs of keys and values of several symbols each");

}  // namespace
}  // namespace headlab
