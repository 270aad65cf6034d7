#include "experiments/pruning/prune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/torch.h"
#include "experiments/measuring/importance.h"
#include "experiments/pruning/gates.h"
#include "experiments/pruning/kept_rounds.h"
#include "experiments/runs/checkpoint.h"
#include "experiments/runs/same_run.h"
#include "experiments/system/stopwatch.h"

namespace headlab {
namespace {

// Random numbers by head: the lowest go first.
SiteGrids random_scores(Model& model, uint64_t seed) {
  SiteGrids scores;
  for (const auto& site : site_heads(model)) {
    auto& of_site = scores[site.name()] = site.no_values();
    const CounterRng rng{.seed = seed, .site = CounterRng::site_key(site.name())};
    for (int64_t n = 0; n < of_site.numel(); ++n)
      of_site.data_ptr<double>()[n] = static_cast<double>(rng.bits(CounterRng::kSampling, n) >> 11);
  }
  return scores;
}

// The rise of the loss without each head.
SiteGrids ablation_scores(OpenedRun& run, const PruneSettings& s, const Compute& compute) {
  SiteGrids scores;
  for (const auto& site : site_heads(*run.model)) scores[site.name()] = site.no_values();
  const auto rise = change_name(run.data->task().metrics().front());
  for (const auto& ablated : ablate(*run.model, ranking_sample(s.judging_of(run)),
                                    single_heads(*run.model), AblationMode::kZero, compute)) {
    const auto& id = ablated.heads[0];
    scores.at(id.site)[id.layer][id.head] = ablated.changes.at(rise);
  }
  return scores;
}

SiteGrids scores_of(OpenedRun& run, const PruneSettings& s, const Compute& compute) {
  if (s.by == "random") return random_scores(*run.model, s.seed);
  if (s.by == "ablation") return ablation_scores(run, s, compute);
  const auto measured = measure_importance(*run.model, ranking_sample(s.judging_of(run)), compute);
  if (s.by == "activation") return measured.activation;
  TORCH_CHECK(s.by == "importance", "no order is called ", s.by);
  return normalized(measured.raw.at(s.reduction), s.norm);
}

void measure(PruneRound& round, const OpenedRun& run, const PruneSettings& s,
             const Compute& compute) {
  const auto sliced = sliced_copy(run, compute.device);
  round.kept = alive_count(*run.model);
  round.parameters = parameter_count(*sliced);
  round.flops = sliced->flops_per_token();
  if (!run.data) return;
  round.evaluation = evaluate(*run.model, s.judging_of(run), compute);
  require_finite(round.evaluation, *run.model);
}

// ConfigError where the layers keep so many that fewer go than are asked for.
void require_reachable(Model& model, const PruneSettings& s) {
  const int64_t most = most_gone(model, s.keep_per_layer), built = built_heads(model);
  if (!s.heads.empty() || s.count <= most) return;
  throw ConfigError(fmt::format(
      "prune --keep-per-layer {}: {} of {} heads can go then, not {}; choose --count {} or "
      "--fraction "
      "{:.3g} at most, or keep fewer in each layer",
      s.keep_per_layer, most, built, s.count, most,
      std::floor(1000.0 * static_cast<double>(most) / static_cast<double>(built)) / 1000));
}

// NaN where one is; what is infinite in both does not differ.
Tensor largest_difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().masked_fill(a == b, 0).max().to(at::kCPU, at::kDouble);
}

}  // namespace

Sample PruneSettings::judging_of(const OpenedRun& run) const {
  auto sample = judging;
  sample.data = run.data.get();
  return sample;
}

int64_t most_gone(Model& model, int64_t keep_per_layer) {
  int64_t stay = 0;
  for (const auto& [site, alive] : alive_heads(model))
    for (int64_t layer = 0; layer < alive.size(0); ++layer)
      stay += std::min(keep_per_layer, alive[layer].sum().item<int64_t>());
  return built_heads(model) - stay;
}

std::vector<HeadId> lowest_heads(const SiteGrids& score, const SiteGrids& alive, int64_t count,
                                 int64_t keep_per_layer) {
  const auto value = [&](const HeadId& id) {
    const double s = score.at(id.site)[id.layer][id.head].item<double>();
    return std::isnan(s) ? std::numeric_limits<double>::infinity() : s;
  };
  auto heads = heads_where(alive);
  std::stable_sort(heads.begin(), heads.end(),
                   [&](const HeadId& a, const HeadId& b) { return value(a) < value(b); });
  std::map<std::pair<std::string, int64_t>, int64_t> spare;  // a layer may lose so many
  for (const auto& id : heads)
    ++spare.try_emplace({id.site, id.layer}, -keep_per_layer).first->second;
  std::vector<HeadId> lowest;
  for (const auto& id : heads)
    if (std::ssize(lowest) < count && spare.at({id.site, id.layer})-- > 0) lowest.push_back(id);
  return lowest;
}

const std::vector<std::string>& prune_orders() {
  static const std::vector<std::string> names{"importance", "ablation", "activation", "gates",
                                              "random"};
  return names;
}

std::string ranking_options(const PruneSettings& s) {
  auto options = "--by " + s.by;
  if (s.by == "importance") options += " --reduction " + s.reduction + " --norm " + s.norm;
  if (s.by == "random") options += fmt::format(" --seed {}", s.seed);
  if (s.recompute) options += " --recompute";
  if (s.keep_per_layer > 0) options += fmt::format(" --keep-per-layer {}", s.keep_per_layer);
  return options;
}

std::vector<HeadId> removed_in(const std::vector<PruneRound>& rounds) {
  std::vector<HeadId> removed;
  for (const auto& round : rounds)
    removed.insert(removed.end(), round.removed.begin(), round.removed.end());
  std::sort(removed.begin(), removed.end());
  return removed;
}

std::shared_ptr<Model> copy_of(const OpenedRun& run, const at::Device& device) {
  auto copy = build_model(run.experiment, run.data_description.shape, device);
  load_model(*copy, module_tensors(*run.model));
  copy->eval();
  return copy;
}

std::shared_ptr<Model> sliced_copy(const OpenedRun& run, const at::Device& device) {
  auto copy = copy_of(run, device);
  slice_heads(*copy);
  return copy;
}

PruneEffect measure_effect(Model& whole, Model& pruned, Model& sliced, const Sample& sample,
                           const Compute& compute) {
  torch::InferenceMode inference;
  const auto& data = *sample.data;
  OutputChangeSums sums(data.task());
  PruneEffect effect;
  if (!data.task().predicts()) effect.sliced_difference = kNaN;
  const auto pass = [&](Model& model, const Batch& batch) {
    HiddenStates hidden;
    const ModelContext ctx{.backend = compute.backend, .hidden = &hidden};
    const auto logits = model.forward(batch, ctx).logits;
    return Pass{model.last_state(hidden), logits};
  };
  for_each_batch(sample, compute.device, [&](const Batch& b) {
    const auto after = pass(pruned, b);
    sums.add(pass(whole, b), after, b);
    if (!data.task().predicts()) return;
    const auto cut = sliced.forward(b, {.backend = compute.backend}).logits;
    effect.sliced_difference = at::maximum(at::scalar_tensor(effect.sliced_difference, at::kDouble),
                                           largest_difference(cut, after.logits))
                                   .item<double>();
  });
  effect.changes = sums.values();
  effect.significance = significance_of({sums.example_loss_changes()}, data.task()).front();
  return effect;
}

std::vector<PruneRound> prune(OpenedRun& run, const PruneSettings& s, const Compute& compute,
                              Tuning* tuning) {
  require_reachable(*run.model, s);
  std::optional<Tuning> unkept;
  if (!tuning) tuning = &unkept.emplace("", s.tune, s.rounds, compute);
  const int64_t built = built_heads(*run.model), gone = built - alive_count(*run.model);
  const bool by_gates = s.by == "gates";
  SiteGrids scores;
  if (by_gates) scores = gate_grids(*run.model).log_alpha;
  OpenedRun bare = by_gates ? ungated(run, compute.device) : run;
  tuning->resume(bare);
  if (const auto kept = tuning->kept_value("scores"); !kept.is_null()) scores = grids_of(kept);
  std::vector<PruneRound> rounds(1);
  if (const auto kept = tuning->measured_round(0)) {
    rounds[0] = kept->get<PruneRound>();
  } else {
    measure(rounds[0], run, s, compute);
    tuning->measured(rounds[0]);
  }
  run = std::move(bare);
  for (int64_t n = 1; n <= s.rounds; ++n) {
    if (tuning->stopped()) break;
    if (const auto kept = tuning->measured_round(n)) {
      rounds.push_back(kept->get<PruneRound>());
      continue;
    }
    const Stopwatch watch;
    PruneRound round;
    auto decided = tuning->decided(n);
    if (!decided.is_null()) {
      decided.at("removed").get_to(round.removed);
    } else if (!s.heads.empty()) {
      const auto alive = alive_heads(*run.model);
      for (const auto& id : s.heads)
        if (alive.at(id.site)[id.layer][id.head].item<bool>()) round.removed.push_back(id);
    } else {
      // Equal steps from what is gone already to what is to be gone.
      const int64_t target = gone + std::max<int64_t>(0, s.count - gone) * n / s.rounds;
      const int64_t more = target - (built - rounds.back().kept);
      if (more > 0 && (scores.empty() || s.recompute)) {
        scores = scores_of(run, s, compute);
        if (!s.recompute) tuning->keep("scores", grids_json(scores));
      }
      if (more > 0)
        round.removed = lowest_heads(scores, alive_heads(*run.model), more, s.keep_per_layer);
    }
    if (tuning->stopped()) break;
    remove_heads(*run.model, round.removed);
    if (decided.is_null()) decided = {{"removed", round.removed}, {"seconds", watch.seconds()}};
    if (!tuning->train(run, decided)) break;
    round.seconds = decided.at("seconds").get<double>() + tuning->seconds();
    measure(round, run, s, compute);
    tuning->measured(round);
    rounds.push_back(std::move(round));
  }
  return rounds;
}

void tune_uncut(OpenedRun whole, Pruning& pruning, const PruneSettings& s, const Compute& compute,
                Tuning& tuning) {
  auto uncut = Tuning::in_folder(tuning.uncut_folder(), s.tune, s.rounds, compute);
  auto& rounds = pruning.rounds;
  rounds.front().uncut = rounds.front().evaluation;
  const int64_t begin = whole.step;
  if (auto& most = whole.experiment.train.max_time) *most -= tuning.seconds_here();
  uncut.resume(whole);
  uncut.keep("rounds", tuning.kept_value("uncut"));
  for (int64_t n = 1; n < std::ssize(rounds); ++n) {
    if (const auto kept = uncut.measured_round(n)) {
      rounds[n].uncut = kept->get<Evaluation>();
      continue;
    }
    if (!uncut.train(whole)) break;
    rounds[n].uncut = evaluate(*whole.model, s.judging_of(whole), compute);
    uncut.measured(*rounds[n].uncut);
    tuning.keep("uncut", uncut.kept_value("rounds"));
    if (tuning.stopped()) return;
  }
  pruning.uncut_updates = whole.step - begin;
  pruning.uncut_ended = uncut.ended();
  if (uncut.ended() && uncut.ended()->status.state == RunState::kStopped)
    tuning.stop(*uncut.ended());
}

Pruning prune_and_measure(OpenedRun& run, const PruneSettings& settings, int64_t bench_batch,
                          bool keep, const Compute& compute, Tuning& tuning) {
  const auto whole = copy_of(run, compute.device);
  OpenedRun uncut = run;
  uncut.model = whole;
  Pruning done;
  done.rounds = prune(run, settings, compute, &tuning);
  if (tuning.stopped()) return done;
  done.sliced = sliced_copy(run, compute.device);
  if (const auto report = tuning.kept_value("report"); !report.is_null()) {
    done.report = with_numbers(nlohmann::ordered_json::parse(report.get<std::string>()));
    const auto kept = tuning.kept_value("uncut");
    done.rounds.front().uncut = done.rounds.front().evaluation;
    for (int64_t n = 1; n < std::ssize(kept); ++n) done.rounds[n].uncut = kept[n].get<Evaluation>();
    return done;
  }
  done.effect = measure_effect(*whole, *run.model, *done.sliced, settings.judging_of(run), compute);
  if (tuning.stopped()) return done;
  done.timed_examples = std::min(bench_batch, run.data->examples(settings.judging.split));
  if (keep) {
    const auto& train = run.experiment.train;
    const bool validates = run.data->examples(Split::kValidation) > 0;
    const auto split = validates ? Split::kValidation : settings.judging.split;
    const Sample all{run.data.get(), split, train.eval_batch};
    const auto parts = evaluate_parts(*run.model, all, {train.eval_batches, 0}, compute);
    done.kept = {evaluate(*whole, all, compute), parts.back(), parts.front()};
  }
  if (tuning.stopped()) return done;
  const auto batch =
      run.data->eval_batch(settings.judging.split, 0, done.timed_examples).to(compute.device);
  constexpr int64_t kPairs = 31;  // by chance 23 of them agree in one measurement of a hundred
  done.time = time_saved(compare_speed(*run.model, *done.sliced, batch, kPairs, compute.backend));
  if (tuning.stopped()) return done;
  if (settings.tune > 0) tune_uncut(std::move(uncut), done, settings, compute, tuning);
  return done;
}

}  // namespace headlab
