// Recall within a context of key-value pairs, as MAD has it (Poli et al., "Mechanistic Design and
// Scaling of Hybrid Architectures", arXiv 2403.17844).
//
//   k2 v5 k0 v1 n3 n7 k2 v5 k1 v1 k0 | v1
//
// Pairs without a separator, of keys that keep the value they are first shown with (two may share
// one); the last pair is of a key that was shown before, and its value lies behind the last id. A
// pair may be two symbols of noise instead.
#include <fmt/format.h>

#include <map>

#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

class PairRecall : public RuleTask {
 public:
  struct Options : AnswerOptions {
    int64_t noise_symbols = 0;
    double noise = 0;

    Options() { symbols = 16, context = 63; }
    Halves halves() const { return {symbols - noise_symbols}; }
    void visit(Fields& f) override {
      AnswerOptions::visit(f);
      f("noise_symbols", noise_symbols, "of the symbols, those that only noise has", at_least(0));
      f("noise", noise, "chance of a pair to be noise", between(0, 1));
    }
    void check(const Complain& complain) const override {
      if (context % 2 == 0 || context < 3)
        complain("context", "must be odd and at least 3: pairs, and the key of the last one");
      if (halves().n < 2)
        complain("symbols", fmt::format("must be at least 2, a key and a value, beside {} of noise",
                                        noise_symbols));
      if (noise > 0 && noise_symbols == 0)
        complain("noise_symbols", "must be at least 1 where there is noise");
    }
  };

  explicit PairRecall(const Options& options)
      : RuleTask(options), options_(options), halves_(options.halves()) {}

  std::optional<double> solved_at() const override { return kSolvedAt; }
  std::optional<Answers> answers(const Batch&) const override {
    return drawn_between(halves_.keys(), halves_.n, "values");
  }

  std::vector<std::string> token_texts() const override {
    auto texts = halves_.texts();
    for (int64_t n = 0; n < options_.noise_symbols; ++n) texts.push_back(fmt::format("n{}", n));
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool evaluated) const override {
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

 private:
  RuleExample draw(Draws& draws, bool) const override {
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

  Options options_;
  Halves halves_;
};

struct NoisyRecall : PairRecall {
  struct Options : PairRecall::Options {
    Options() { symbols = 32, noise_symbols = 16, noise = 0.2; }
  };
  explicit NoisyRecall(const Options& options) : PairRecall(options) {}
};

const RegisterData<PairRecall> in_context_recall("in_context_recall",
                                                 "pairs of keys and values, again and again");
const RegisterData<NoisyRecall> noisy_recall("noisy_recall",
                                             "pairs of keys and values with noise between");

}  // namespace
}  // namespace headlab
