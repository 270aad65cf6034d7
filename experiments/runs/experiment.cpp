#include "experiments/runs/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/observe/probe.h"
#include "experiments/data/source.h"
#include "experiments/files/config_file.h"
#include "experiments/models/stack_options.h"
#include "experiments/runs/other_words.h"
#include "experiments/runs/schedule.h"
#include "experiments/runs/statistic_names.h"
#include "experiments/system/most_threads.h"

namespace headlab {

void CheckpointOptions::visit(Fields& f) {
  f("every", every, "steps between checkpoints; 0: only the last", at_least(0));
  f("keep_last", keep_last, "checkpoints that stay", at_least(1));
  f("keep_best", keep_best, "the one with the least validation loss stays too");
}

constexpr int64_t kUsualSteps = 2000;

void EarlyStopOptions::visit(Fields& f) {
  f("patience", patience, "evaluations without a better loss that end the run; 0: none do",
    at_least(0));
  f("min_delta", min_delta, "a loss is better when it is lower by this much", at_least(0));
}

void TrainOptions::visit(Fields& f) {
  f("steps", steps, "updates of the weights (default: 2000, or as many as the epochs take)",
    at_least(1));
  f("epochs", epochs, "passes over the training data, where these are finite; may end it sooner",
    at_least(1));
  if (!steps && !epochs) steps = kUsualSteps;  // written down, as every default is
  f("batch", batch, "examples of an update", at_least(1));
  f("max_positions", max_positions,
    "most positions of an update, on either side of its pairs of texts; in place of batch, where "
    "the examples differ in length",
    at_least(1));
  f("accumulate", accumulate, "micro-batches that an update is split into", at_least(1));
  f("lr", lr, "peak learning rate", above(0));
  f("min_lr", min_lr, "rate at the end of a cosine (default: lr / 10)", at_least(0));
  f("warmup", warmup, "updates over which the rate rises; below 1: as a share of all");
  f("schedule", schedule, "how the rate falls; noam takes its peak from d_model and warmup",
    one_of(schedule_names()));
  f("decay_steps", decay_steps, "updates until cosine and linear end (default: all)", at_least(1));
  f("optimizer", optimizer, "what turns gradients into updates", one_of({"adamw"}));
  f("betas", betas, "decay rates of AdamW's two averages", from_below(0, 1));
  f("eps", eps, "epsilon of AdamW", above(0));
  f("weight_decay", weight_decay, "of tensors with two or more dimensions, gates excepted",
    at_least(0));
  f("clip", clip, "largest norm of all gradients; 0: any", at_least(0));
  f("label_smoothing", label_smoothing, "share of the target spread over the vocabulary",
    from_below(0, 1));
  f("gate_lr", gate_lr, "learning rate of head gates, from first to last", above(0));
  f("multiplier_lr", multiplier_lr, "rate at which multipliers of a target ascend", above(0));
  f("gates_only", gates_only, "only head gates and multipliers train, other weights stay");
  f("precision", precision, "of forward passes; auto: bf16 where the device is fast at it",
    one_of({"auto", "fp32", "bf16"}));
  f("eval_every", eval_every, "steps between evaluations; 0: only the last", at_least(0));
  f("eval_batches", eval_batches, "batches of an evaluation; the last one takes all", at_least(1));
  f("eval_batch", eval_batch, "examples of an evaluation's batch", at_least(1));
  f("bleu_every", bleu_every,
    "steps between measurements of BLEU, greedy, over the validation split, and one at the end; 0: "
    "none; a multiple of eval_every",
    at_least(0));
  f("early_stop", early_stop, "ends a run that no longer gets better");
  f("checkpoint", checkpoint, "when the state is saved, and what stays");
  f("threads", threads, "CPU threads (default: OMP_NUM_THREADS, else every core)",
    between(1, kMostThreads));
  f("busy_cores", busy_cores,
    "auto: a thread, busy_cores, measures whether other processes take the cores, and the threads "
    "then spin shorter while they wait; off: no such thread",
    one_of({"auto", "off"}));
  f("deterministic", deterministic, "refuse operations that do not repeat exactly");
  f("fast_sum", fast_sum,
    "several processes add gradients in the order that is fastest, not in theirs: losses of other "
    "numbers of processes agree to about 1e-5");
  f("max_time", max_time, "seconds after which this session stops, resumable", above(0));
}

int64_t TrainOptions::epoch_size(const DataSource& data) const {
  if (!max_positions) return data.epoch_examples();
  const int64_t batches = data.sized_batches(*max_positions);
  if (batches == 0)
    throw ConfigError(
        "train.max_positions: the examples of these data are all of one length; give train.batch");
  return batches;
}

int64_t TrainOptions::total_steps(int64_t epoch_size) const {
  if (!epochs) return steps.value_or(kUsualSteps);
  if (epoch_size == 0)
    throw ConfigError(
        "train.epochs: these data are drawn without end and have no epochs; give train.steps");
  const int64_t taken = max_positions ? 1 : batch;  // of an epoch, by an update
  const int64_t updates = (*epochs * epoch_size + taken - 1) / taken;
  return steps ? std::min(*steps, updates) : updates;
}

void TrainOptions::require_parts(int64_t processes) const {
  if (accumulate % processes == 0) return;
  throw ConfigError(
      fmt::format("train.accumulate: {} processes share the micro-batches of an update, so there "
                  "must be as many "
                  "for each, and there are {}; train.accumulate={} does it",
                  processes, accumulate, (accumulate + processes - 1) / processes * processes));
}

void TrainOptions::check(const Complain& complain) const {
  if (betas.size() != 2) complain("betas", "must be two numbers");
  if (min_lr && *min_lr > lr)
    complain("min_lr", fmt::format("must be at most lr, {}", shortest(lr)));
  if (!max_positions && batch % accumulate != 0)
    complain("accumulate", fmt::format("must divide batch, {}", batch));
  if (!warmup.is_share() && warmup.of(0) == 0 && (schedule == "inverse_sqrt" || schedule == "noam"))
    complain("warmup", fmt::format("must be at least 1 with {}", schedule));
  if (fast_sum && deterministic)
    complain("fast_sum",
             "is another order of sums for other numbers of processes; not with deterministic");
  if (bleu_every > 0 && (eval_every == 0 || bleu_every % eval_every != 0))
    complain("bleu_every", fmt::format("must be a multiple of eval_every, {}", eval_every));
}

void AttentionLogOptions::visit(Fields& f) {
  f("every", every, "steps between attention maps; 0: none", at_least(0));
  f("probes", probes, "examples whose maps are written, always the same", at_least(1));
  f("layers", layers, "layers whose maps are written; empty: all", at_least(0));
  f("heads", heads, "heads whose maps are written; empty: all", at_least(0));
  f("max_positions", max_positions, "maps are cut to this many queries and keys", at_least(1));
  f("max_bytes", max_bytes, "maps end when they have taken this much of the log",
    between(0, 0x1p50));
}

void LogOptions::visit(Fields& f) {
  f("every", every, "steps between lines of metrics", at_least(1));
  f("stats_every", stats_every, "steps between head statistics; 0: none", at_least(0));
  f("stats", stats, "head statistics: names, or all; empty: the usual ones");
  f("attention", attention, "attention maps of a few fixed examples");
  f("flush_every", flush_every, "logged steps between flushes to disk", at_least(1));
  f("swmr", swmr, "the log may be read while it is written");
}

void LogOptions::check(const Complain& complain) const {
  auto known = statistic_names();
  known.push_back("all");
  for (const auto& name : stats)
    if (std::find(known.begin(), known.end(), name) == known.end())
      complain("stats",
               fmt::format("no statistic is called '{}'{}", name, did_you_mean(name, known)));
}

std::vector<std::string> LogOptions::statistics() const {
  if (stats.empty()) return default_statistics();
  const auto named = [&](const std::string& name) {
    return std::find(stats.begin(), stats.end(), name) != stats.end();
  };
  auto names = statistic_names();
  if (!named("all")) std::erase_if(names, [&](const std::string& name) { return !named(name); });
  return names;
}

Experiment::Experiment() : data(data_registry(), "char"), model(model_registry(), "decoder") {}

void Experiment::visit(Fields& f) {
  f("name", name, "of the run: its directory under runs/ (default: the file's name, my.yaml: my)");
  f("tag", tag,
    "a word that keeps this run apart from others of the same settings; shown in labels");
  f("init", init,
    "a run, or a checkpoint in one, whose weights training begins with; all else is new (default: "
    "none, weights are drawn)");
  f("seed", seed, "of everything drawn: weights, batches, dropout", from_below(0, 0x1p63));
  f("dtype", dtype,
    "of the weights: bf16 takes half the memory, and what is kept so is looked at, not trained",
    one_of({"fp32", "bf16"}));
  f("data", data, "where examples come from");
  f("model", model, "what is trained");
  f("train", train, "how it is trained");
  f("log", log, "what is recorded");
}

namespace {
// Models compute in 32 bits: beyond them torch throws, and a number above 0 below them is taken for
// 0.
void check_numbers(const ConfigNode& node, const std::string& path, const Complain& complain) {
  for (const auto& [key, value] : node.entries)
    check_numbers(value, path.empty() ? key : fmt::format("{}.{}", path, key), complain);
  for (const auto& item : node.items) check_numbers(item, path, complain);
  double value = 0;
  const char* end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (node.kind != ConfigNode::Kind::kScalar || node.quoted || stop != end || error != std::errc())
    return;
  using Float = std::numeric_limits<float>;
  const double size = std::abs(value);
  if (size > Float::max())
    complain(path, fmt::format("must be at most 3.4e38, as 32-bit floats are, is {}", node.text));
  if (size != 0 && size < Float::min())
    complain(path,
             fmt::format("must be 0 or at least 1.2e-38, as 32-bit floats are, is {}", node.text));
}

bool is_plain(const std::string& word) {
  return std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}
}  // namespace

OtherWords Experiment::other_words() const { return kOtherWords; }

void Experiment::check(const Complain& complain) const {
  auto written = *this;
  check_numbers(write_block(written), "", complain);
  if (!is_plain(tag)) complain("tag", "must be of letters, digits, '_', '-' and '.'");
  if (name.empty())
    complain("name", "is missing; write name: <what the run is called>");
  else if (name[0] == '.' || !is_plain(name))
    complain("name", "must be of letters, digits, '_', '-' and '.', and not start with '.'");

  const auto below = [&](const char* what, const std::vector<int64_t>& indices, int64_t count) {
    for (int64_t index : indices)
      if (index >= count)
        complain(fmt::format("log.attention.{}", what),
                 fmt::format("{} is out of range: the model has {} {}", index, count, what));
  };
  int64_t layers = 0, heads = 0;  // of the largest stack
  for (const auto& stack : model.as<ModelOptions>().stacks())
    layers = std::max(layers, stack->layers), heads = std::max(heads, stack->heads);
  below("layers", log.attention.layers, layers);
  below("heads", log.attention.heads, heads);
}

ConfigNode load_experiment(const std::filesystem::path& file,
                           const std::vector<std::string>& overrides) {
  auto config = load_config(file, overrides);
  const auto* written = config.find("name");
  const std::string from = written ? written->place.file : "";
  if (written && (from == file.string() || from == "override")) return config;
  const std::string stem = file.stem().string();
  const Place place{file.string(), 0, 0, {}};
  if (!is_plain(stem) || stem.empty() || stem[0] == '.') {
    Problems problems;
    problems.add(place, "name",
                 fmt::format("the file's own, '{}', cannot be a run's; write name: <letters, "
                             "digits, '_', '-' and '.'>",
                             stem));
    problems.raise();
  }
  auto name = ConfigNode::scalar(stem, /*quoted=*/true);
  name.place = place;
  config.set("name", std::move(name));
  return config;
}

}  // namespace headlab
