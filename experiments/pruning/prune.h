// Removes heads in rounds and says what is left.
#pragma once

#include <optional>

#include "experiments/inference/evaluate.h"
#include "experiments/measuring/ablation.h"
#include "experiments/pruning/speed.h"
#include "experiments/pruning/tuning.h"
#include "experiments/runs/open_run.h"

namespace headlab {

// The `count` heads of lowest score among those alive, all layers together; of equals the one of
// the lower site, layer, head. The `keep_per_layer` alive heads of highest score of each layer
// stay, so that there may be fewer. score NaN: no score, goes last; alive bool.
std::vector<HeadId> lowest_heads(const SiteGrids& score, const SiteGrids& alive, int64_t count,
                                 int64_t keep_per_layer);

// What heads are ranked by.
const std::vector<std::string>& prune_orders();

struct PruneSettings {
  std::vector<HeadId> heads;        // these go; or, of the model as built,
  int64_t count = 0;                // so many are gone afterwards
  std::string by = "importance";    // one of prune_orders()
  std::string reduction = "paper";  // of importance
  std::string norm = "global";      // one of importance_norms()
  bool recompute = false;           // the order anew before each round
  int64_t rounds = 1, keep_per_layer = 0;
  int64_t tune = 0;               // updates after each round, with the run's own data and settings
  Sample judging = {.most = 20};  // of the run's data
  uint64_t seed = 0;              // of the random order

  Sample judging_of(const OpenedRun& run) const;
};

// The options of `prune` that say which heads go next.
std::string ranking_options(const PruneSettings& settings);

// The model before any pruning (round 0) and after each round.
struct PruneRound {
  std::vector<HeadId> removed;  // in this round
  int64_t kept = 0, parameters = 0;
  double flops = 0;  // a token, forward, full context
  Evaluation evaluation;
  std::optional<Evaluation> uncut = {};  // the whole model after as many updates of tuning
  double seconds = 0;                    // ranking, pruning and tuning
};

std::vector<HeadId> removed_in(const std::vector<PruneRound>& rounds);  // sorted

// The most heads, of the model as built, that can be gone where every layer keeps so many.
int64_t most_gone(Model& model, int64_t keep_per_layer);

// Prunes run.model (masked; run.step moves on by the updates of tuning). By gates: in the end the
// heads that stay have a gate of 1 for good, run.experiment too has none any more. `tuning`: keeps
// what is tuned, null: nothing does. Where it ends before its time the round that it was in is not
// among those returned. ConfigError where settings.keep_per_layer leaves more than settings.count
// asks for.
std::vector<PruneRound> prune(OpenedRun& run, const PruneSettings& settings, const Compute& compute,
                              Tuning* tuning = nullptr);

// A model of its own with the same weights; with only the alive heads.
std::shared_ptr<Model> copy_of(const OpenedRun& run, const at::Device& device);
std::shared_ptr<Model> sliced_copy(const OpenedRun& run, const at::Device& device);

// What pruning did: changes (OutputChangeSums) of the pruned against the whole model, and the
// largest difference between the pruned model's logits and those of its sliced copy; NaN: a model
// has no logits, or they are not finite.
struct PruneEffect {
  std::map<std::string, double> changes;
  Significance significance;  // of the change of the loss
  double sliced_difference = 0;
};
PruneEffect measure_effect(Model& whole, Model& pruned, Model& sliced, const Sample& sample,
                           const Compute& compute);

// What a run that is kept says of itself, as every run does: of the validation split, or of the
// one that is pruned by where there is none.
struct KeptLosses {
  Evaluation before, after;  // the whole and the pruned model over the whole split
  Evaluation judged;         // the pruned one over train.eval_batches
};

// Trains `whole`, a run as it was before pruning, as long as each round was tuned, by the same
// settings and batches, and puts what it then is into the rounds: tuning by itself is no effect of
// the cut.
struct Pruning;
// It goes on where a process before this one was stopped; stopped itself, it ends `tuning`, that of
// the cut.
void tune_uncut(OpenedRun whole, Pruning& pruning, const PruneSettings& settings,
                const Compute& compute, Tuning& tuning);

// All of it for one run, which is pruned. Where tuning ended before its time there are rounds only.
struct Pruning {
  std::vector<PruneRound> rounds;           // the first is before any pruning
  int64_t uncut_updates = 0;                // of the whole model, by tune_uncut();
  std::optional<TrainOutcome> uncut_ended;  // how it ended, where that was before its time
  std::optional<KeptLosses> kept;           // where the run is
  nlohmann::ordered_json report;  // of a process before this one, which was to write it: what
                                  // follows is then without values, and so is `kept`
  std::shared_ptr<Model> sliced;
  PruneEffect effect;
  TimeSaved time;              // by the sliced model, of the masked one's
  int64_t timed_examples = 0;  // in each forward pass: `bench_batch`, or as many as there are
};
// `keep`: the pruned run is kept.
Pruning prune_and_measure(OpenedRun& run, const PruneSettings& settings, int64_t bench_batch,
                          bool keep, const Compute& compute, Tuning& tuning);

}  // namespace headlab
