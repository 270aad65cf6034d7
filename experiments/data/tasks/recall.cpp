// Multi-query associative recall (Arora et al., "Zoology: Measuring and Improving Recall in
// Efficient Language Models", arXiv 2312.04927): key-value pairs, then each key once more, of which
// the value is asked. With `updates` some keys get a second pair, and the last value counts.
//
//   values  k3 v8 k0 v5 k2 v1 | v9 v2 k0 v5 v4 v4 k3 v8 v0 v7 ... k2 v1   the answer follows
//   blank   k3 v8 k0 v5 k2 v1 | _  _  k0 _  _  _  k3 _  _  _  ... k2 _    it is asked at the query
//   all     k3 v8 k0 v5 k2 v1 | v9 k4 k0 v1 k3 _  k3 v8 v0 k7 ... k2 v6   and shown nowhere
//
// `blank` is what Zoology's Figure 2 was made with, `all` its generator's default. Slot g = 1, 2,
// ... of the second part (two tokens) has a weight of g^(power - 1), a power law; every key in turn
// takes a slot that is still free. The lower half of the symbols are keys, the upper half values;
// where there is a blank it is symbol 0.
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numeric>

#include "core/config/config.h"
#include "core/torch.h"
#include "experiments/data/tasks/rule_task.h"

namespace headlab {
namespace {

class Recall : public RuleTask {
 public:
  struct Options : SyntheticOptions, DerivedDefaults<> {
    std::optional<int64_t> pairs;
    double power = 0.01;
    std::string fill = "values";
    int64_t updates = 0;

    void derive() override { pairs = pair_count(); }
    int64_t pair_count() const { return pairs.value_or(std::max<int64_t>(1, context / 8)); }
    bool answers_follow() const { return fill == "values"; }

    void visit(Fields& f) override {
      SyntheticOptions::visit(f);
      f("pairs", pairs, "key-value pairs (default: context/8, at least 1)", at_least(1));
      f("power", power, "of the power law; 1: queries are spread evenly", above(0));
      f("fill", fill,
        "what stands between queries: values, and the answer behind each query; blank, or all "
        "symbols, and the answer asked at the query, shown nowhere",
        one_of({"values", "blank", "all"}));
      f("updates", updates, "keys that get a second pair, whose value counts", at_least(0));
    }
    void check(const Complain& complain) const override {
      const auto count = pair_count();
      if (updates > count) complain("updates", fmt::format("must be at most pairs, {}", count));
      if (4 * count + 2 * updates > context)
        complain("context",
                 fmt::format("must be at least 4 tokens a pair, and there are {} pairs", count) +
                     (updates > 0 ? fmt::format(", and 2 an update, of {}", updates) : ""));
      if (!answers_follow()) {
        if (context % 2 != 0)
          complain("context",
                   "must be even with fill: " + fill + ", a query and what is behind it");
        if (symbols <= context)
          complain("symbols",
                   fmt::format("must be more than context, {}, with fill: {}", context, fill));
      } else if (2 * count > symbols) {
        complain("symbols",
                 fmt::format("must be at least 2 a pair, and there are {} pairs", count));
      } else if (updates > 0 && symbols < 3) {
        complain("symbols", "must be at least 3 with updates: another value than the old one");
      }
    }
  };

  explicit Recall(const Options& options)
      : RuleTask(options),
        fill_(options.fill),
        answers_follow_(options.answers_follow()),
        pairs_(options.pair_count()),
        updates_(options.updates),
        first_key_(answers_follow_ ? 0 : 1),
        first_value_(symbols() / 2) {
    const int64_t slots = (context() + 1 - queries_from()) / 2;
    for (int64_t g = 1; g <= slots; ++g) weights_.push_back(std::pow(g, options.power - 1));
  }

  const Task& task() const override { return prediction_by_example(); }
  std::optional<double> solved_at() const override { return kSolvedAt; }

  // Who has not learned to look up a key can still name a value of the example: any that one of its
  // keys has.
  std::optional<Answers> answers(const Batch& batch) const override {
    auto among = at::zeros({batch.examples(), 1, vocabulary()}, at::kBool);
    bool* may_be = among.data_ptr<bool>();
    const int64_t* ids = batch.ids.data_ptr<int64_t>();
    for (int64_t b = 0; b < batch.examples(); ++b) {
      for (const auto& [key, value] : values_of({ids, ids + context()})) may_be[value] = true;
      ids += context(), may_be += vocabulary();
    }
    return Answers{.among = among,
                   .of = fmt::format("any of the values of an example's {} keys", pairs_),
                   .drawn_alike = true};
  }

  // Queries come by a power law of the distance, keys in their order: the place of a query makes
  // some pairs likelier than others.
  std::optional<ShownValues> shown_values(const Batch& batch) const override {
    const int64_t B = batch.examples(), T = context();
    ShownValues shown{at::zeros({B, pairs_}, at::kLong), at::full({B, T}, -1, at::kLong)};
    const int64_t *ids = batch.ids.data_ptr<int64_t>(), *target = batch.targets.data_ptr<int64_t>();
    for (int64_t b = 0; b < B; ++b, ids += T, target += T) {
      int64_t* values = shown.values[b].data_ptr<int64_t>();
      int64_t* of_target = shown.of_target[b].data_ptr<int64_t>();
      std::map<int64_t, int64_t> pair_of;  // by key, in the order in which they are shown
      for (int64_t t = 0; t < queries_from(); t += 2) {
        const auto pair = pair_of.emplace(ids[t], std::ssize(pair_of)).first->second;
        values[pair] = ids[t + 1];
      }
      for (int64_t t = queries_from(); t < T; ++t)
        if (target[t] >= 0) of_target[t] = pair_of.at(ids[t]);
    }
    return shown;
  }

  std::vector<std::string> token_texts() const override {
    std::vector<std::string> texts;
    for (int64_t id = 0; id < symbols(); ++id)
      texts.push_back(id < first_key_     ? "_"
                      : id < first_value_ ? "k" + std::to_string(id)
                                          : "v" + std::to_string(id - first_value_));
    return texts;
  }

  std::vector<int64_t> label(const RuleExample& example, bool) const override {
    const auto& ids = example.ids;
    const auto value_of = values_of(ids);
    std::vector<int64_t> targets(ids.size(), kIgnored);
    for (const int64_t t : example.queries.empty() ? queries_in(ids) : example.queries) {
      if (t < queries_from() || t >= context()) refuse_place(t, "is outside the queries' part");
      const auto bound = value_of.find(ids[t]);
      if (bound == value_of.end())
        refuse_place(t, fmt::format("{} was paired with nothing", ids[t]));
      targets[t] = bound->second;
    }
    return targets;
  }

 private:
  bool targets_follow() const override { return answers_follow_; }
  int64_t queries_from() const { return 2 * (pairs_ + updates_); }

  // Of each key of an example the value that counts.
  std::map<int64_t, int64_t> values_of(const std::vector<int64_t>& ids) const {
    std::map<int64_t, int64_t> value_of;
    for (int64_t t = 0; t < queries_from(); t += 2) value_of[ids[t]] = ids[t + 1];
    return value_of;
  }

  // Where the ids tell which are queries.
  std::vector<int64_t> queries_in(const std::vector<int64_t>& ids) const {
    if (fill_ == "all")
      refuse_place(queries_from(),
                   "ids do not tell queries from what stands between them with "
                   "fill: all; in.queries must");
    std::vector<int64_t> places;
    for (int64_t t = queries_from(); t < context(); ++t)
      if (answers_follow_ ? ids[t] < first_value_ : ids[t] != 0) places.push_back(t);
    return places;
  }

  int64_t filler(Draws& draws) const {
    if (answers_follow_) return first_value_ + draws.below(symbols() - first_value_);
    return fill_ == "blank" ? 0 : draws.below(symbols());
  }

  RuleExample draw(Draws& draws, bool) const override {
    const int64_t values = symbols() - first_value_;
    std::vector<int64_t> ids(context() + 1);
    for (int64_t& token : ids) token = filler(draws);
    const auto key = draws.distinct(pairs_, first_value_ - first_key_);
    auto value = draws.distinct(pairs_, values);
    const auto pair_at = [&](int64_t t, int64_t i) {
      ids[t] = first_key_ + key[i], ids[t + 1] = first_value_ + value[i];
    };
    for (int64_t i = 0; i < pairs_; ++i) pair_at(2 * i, i);
    if (updates_ > 0) {
      int64_t at = 2 * pairs_;
      for (const int64_t i : draws.distinct(updates_, pairs_)) {
        value[i] = (value[i] + draws.between(1, values - 1)) % values;  // any but the old one
        pair_at(at, i), at += 2;
      }
    }
    RuleExample example;
    std::vector<double> free = weights_;
    for (int64_t i = 0; i < pairs_; ++i) {
      const int64_t query = queries_from() + 2 * take_slot(draws, free);
      if (answers_follow_)
        pair_at(query, i);
      else
        ids[query] = first_key_ + key[i];
      example.queries.push_back(query);
    }
    ids.pop_back();
    example.ids = std::move(ids);
    return example;
  }

  // Draws a slot by the weights that are left, and leaves it none.
  static int64_t take_slot(Draws& draws, std::vector<double>& free) {
    double left = draws.unit() * std::accumulate(free.begin(), free.end(), 0.0);
    size_t slot = 0;
    for (size_t g = 0; g < free.size() && left >= 0; ++g) {
      if (free[g] == 0) continue;
      slot = g;  // the last free one, should rounding leave a rest
      left -= free[g];
    }
    free[slot] = 0;
    return static_cast<int64_t>(slot);
  }

  std::string fill_;
  bool answers_follow_;
  int64_t pairs_, updates_, first_key_, first_value_;
  std::vector<double> weights_;  // of each slot
};

const RegisterData<Recall> recall_source("recall", "key-value pairs, then queries of keys");

}  // namespace
}  // namespace headlab
