// MAD's memorization (Poli et al., arXiv 2403.17844): values of keys that no example shows, so that
// the weights must hold them. One map of keys to values for training and evaluations, by map_seed.
//
//   ids      k7 <insert> k2 <insert>
//   targets     v4          v0
#include <fmt/format.h>

#include "core/config/seed_option.h"
#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

// Each key's value, distinct.
std::vector<int64_t> drawn_map(uint64_t seed, const Halves& halves) {
  Draws draws(example_bits(seed, 0, 0));
  auto map = draws.distinct(halves.keys(), halves.values());
  for (auto& value : map) value += halves.keys();
  return map;
}

class Memorization : public RuleTask {
 public:
  struct Options : SyntheticOptions {
    SeedOption map_seed;

    Options() { symbols = 64, context = 16; }
    Halves halves() const { return {symbols - 1}; }
    void visit(Fields& f) override {
      SyntheticOptions::visit(f);
      f("map_seed", map_seed, "of the map of keys to values, which a run's seed does not change");
    }
    void check(const Complain& complain) const override {
      if (context % 2 != 0) complain("context", "must be even: keys, and where their values go");
      if (halves().n < 2)
        complain("symbols", "must be at least 3: a key, a value, and where values go");
    }
  };

  explicit Memorization(const Options& options)
      : RuleTask(options),
        halves_(options.halves()),
        map_(drawn_map(options.map_seed.value, halves_)) {}

  std::optional<Answers> answers(const Batch&) const override {
    auto values = drawn_between(halves_.keys(), halves_.n, "values");
    values.drawn_alike = false;  // only those of the map are ever asked
    return values;
  }

  std::vector<std::string> token_texts() const override {
    auto texts = halves_.texts();
    texts.push_back("<insert>");
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool) const override {
    const auto& map = example.map.empty() ? map_ : example.map;
    std::vector<int64_t> targets(context(), kIgnored);
    for (int64_t t = 1; t < context(); t += 2) {
      const int64_t key = example.ids[t - 1];
      if (!halves_.is_key(key)) refuse_place(t - 1, fmt::format("{} is no key", key));
      if (key >= std::ssize(map)) refuse_place(t - 1, fmt::format("{} is not in the map", key));
      targets[t] = map[key];
    }
    return targets;
  }

 private:
  bool targets_follow() const override { return false; }

  RuleExample draw(Draws& draws, bool) const override {
    std::vector<int64_t> ids(context(), halves_.n);
    for (int64_t t = 0; t < context(); t += 2) ids[t] = draws.below(halves_.keys());
    return {.ids = std::move(ids)};
  }

  Halves halves_;
  std::vector<int64_t> map_;  // [keys]
};

const RegisterData<Memorization> memorization("memorization",
                                              "values of keys that no example shows");

}  // namespace
}  // namespace headlab
