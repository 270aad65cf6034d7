#include "experiments/training/update.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/torch.h"
#include "experiments/runs/experiment.h"
#include "experiments/training/rank_sums.h"

namespace headlab {

Schedule schedule_of(const TrainOptions& options, int64_t d_model, int64_t epoch_size) {
  Schedule schedule;
  schedule.kind = options.schedule;
  schedule.lr = options.lr;
  schedule.min_lr = options.floor();
  schedule.warmup = options.warmup.of(options.total_steps(epoch_size));
  schedule.decay = options.decays_over(epoch_size);
  schedule.d_model = d_model;
  return schedule;
}

std::string unreached_rate(const Schedule& schedule, int64_t steps) {
  const bool noam = schedule.kind == "noam";  // peaks with the last update of the warmup
  const int64_t w = schedule.warmup;
  const double peak = noam ? schedule.at(w - 1) : schedule.lr;
  double highest = 0;
  for (const int64_t step : {int64_t{0}, w - 1, w, steps - 1})
    if (step >= 0 && step < steps) highest = std::max(highest, schedule.at(step));
  if (highest >= peak * (1 - 1e-9)) return "";
  const bool cut = w >= steps;
  return fmt::format(
      "{} {} is never reached, the highest rate is {:.4g}: train.warmup takes {} updates, {} {}",
      noam ? "the peak of train.schedule noam," : "train.lr", fmt::format("{:.4g}", peak), highest,
      w, cut ? "the run ends after" : "train.decay_steps ends after", cut ? steps : schedule.decay);
}

AdamW::Settings adamw_of(const TrainOptions& options) {
  return {options.betas[0], options.betas[1],      options.eps,       options.weight_decay,
          options.gate_lr,  options.multiplier_lr, options.gates_only};
}

MicroBatches micro_batches(const TrainOptions& options, const DataSource& data, uint64_t seed,
                           int64_t step, const Comm& comm) {
  std::vector<Batch> own;
  if (options.max_positions) {
    const auto whole = data.sized_batch(seed, step, *options.max_positions);
    const int64_t pairs = whole.examples(), parts = std::min(options.accumulate, pairs);
    for (int64_t n = comm.rank(); n < parts; n += comm.size())
      own.push_back(whole.part(n * pairs / parts, (n + 1) * pairs / parts));
    return {std::move(own), parts, comm};
  }
  const int64_t part = options.batch / options.accumulate;
  for (int64_t n = comm.rank(); n < options.accumulate; n += comm.size())
    own.push_back(data.epoch_examples() > 0
                      ? data.epoch_batch(seed, step * options.batch + n * part, part)
                      : data.train_batch(seed, step, n * part, part));
  return {std::move(own), options.accumulate, comm};
}

bool sums_each_round(const TrainOptions& options, const Comm& comm) {
  constexpr int64_t kMostRounds = 4;  // sums of all gradients, in an update
  return options.deterministic || options.accumulate / comm.size() <= kMostRounds;
}

Autocast::Autocast(const at::Device& device, bool bf16) : device_(device.type()), on_(bf16) {
  if (!on_) return;
  at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  at::autocast::set_autocast_enabled(device_, true);
}

Autocast::~Autocast() {
  if (!on_) return;
  at::autocast::set_autocast_enabled(device_, false);
  at::autocast::clear_cache();
}

namespace {

ParameterGroups special_parameters(Model& model) {
  ParameterGroups groups;
  model.parameter_groups(groups);
  return groups;
}

}  // namespace

Updater::Updater(std::shared_ptr<Model> model, Schedule schedule, const AdamW::Settings& adamw,
                 const Settings& settings)
    : model_(std::move(model)),
      device_(model_->parameters().front().device()),
      heads_(all_heads(*model_)),
      schedule_(std::move(schedule)),
      settings_(settings),
      task_(settings.task ? *settings.task : prediction_task()),
      comm_(settings.comm ? *settings.comm : alone()),
      optimizer_(*model_, special_parameters(*model_), adamw),
      gradients_(optimizer_.parameters()) {}

Updater::Part Updater::Part::detached() const {
  Part part{nll.detach(), smoothed.defined() ? smoothed.detach() : Tensor(), scored, aux};
  for (auto& loss : part.aux) loss.value = loss.value.detach();
  return part;
}

Updater::Part Updater::forward(int64_t draw, int64_t step, const Batch& on_host,
                               SiteProbes* probes) {
  const auto batch = on_host.to(device_);
  ModelContext ctx{
      .observer = probes, .backend = settings_.backend, .scored_only = task_.takes_scored_only()};
  if (probes) probes->tell(batch);
  ctx.rng.seed = settings_.seed;
  ctx.rng.step = static_cast<uint64_t>(draw);
  ctx.update = step;
  Autocast half(device_, settings_.bf16);
  const auto out = model_->forward(batch, ctx);
  Part part;
  part.scored = task_.scored(on_host).to(device_, /*non_blocking=*/true);
  part.aux = out.aux;
  if (settings_.label_smoothing == 0) {
    part.nll = task_.loss(out.logits, batch);
    return part;
  }
  part.smoothed = task_.loss(out.logits, batch, settings_.label_smoothing);
  part.nll = task_.loss(out.logits.detach(), batch);
  return part;
}

// By the scored targets of the whole update: micro-batches may score different numbers of them.
Updater::Losses Updater::losses_of(const std::vector<Part>& parts) const {
  Tensor scored;
  for (const auto& part : parts) scored = scored.defined() ? scored + part.scored : part.scored;
  scored = scored.clamp_min(1);
  Losses losses;
  const auto add = [&](Tensor& to, const Tensor& sum) {
    if (!sum.defined()) return;
    const auto share = sum / scored;
    to = to.defined() ? to + share : share;
  };
  for (const auto& part : parts) {
    add(losses.nll, part.nll);
    add(losses.smoothed, part.smoothed);
    for (const auto& aux : part.aux)
      losses.aux.push_back({aux.name,
                            parts.size() == 1 ? aux.value : aux.value * part.scored / scored,
                            OverLayers::kSum});
  }
  losses.aux = combine_aux(losses.aux);
  return losses;
}

Updater::Losses Updater::measure(int64_t step, const MicroBatches& micro_batches,
                                 SiteProbes* probes) {
  at::NoGradGuard no_grad;
  std::vector<Part> parts;
  for (int64_t n = 0; n < micro_batches.count; ++n)
    parts.push_back(
        forward(step * micro_batches.count + n, step, micro_batches.batches[n], probes));
  return losses_of(parts);
}

// Sums go back, and are divided once by what the whole update scores, however many parts it has and
// however many ranks share them. A round is a micro-batch of each rank. Rank 0 keeps what the
// rounds before add up to, so that the next ones are added to it in the order of the micro-batches.
Updater::Losses Updater::add_gradients(int64_t step, const MicroBatches& micro_batches,
                                       SiteProbes* probes) {
  const int64_t count = micro_batches.count, rounds = (count + comm_.size() - 1) / comm_.size();
  const bool is_mean = count == 1;
  std::vector<Part> own;
  std::vector<ProbeSums> seen;
  gradients_.begin();
  for (int64_t round = 0; round < rounds; ++round) {
    if (round > 0 && settings_.each_round && !comm_.first()) gradients_.zero();
    if (round < std::ssize(micro_batches.batches)) {
      const auto part = forward(step * count + micro_batches.number(round), step,
                                micro_batches.batches[round], probes);
      auto loss = is_mean ? part.loss() / part.scored.clamp_min(1) : part.loss();
      for (const auto& aux : part.aux)
        loss = loss + (is_mean ? aux.value : aux.value * part.scored);
      loss.backward();
      own.push_back(part.detached());
      if (probes && !is_mean) seen.push_back(probes->take_sums());
    }
    if (settings_.each_round || round + 1 == rounds) gradients_.sum(comm_);
  }
  at::NoGradGuard no_grad;
  if (probes && !is_mean) add_sums_of_all(*probes, std::move(seen), micro_batches, comm_);
  auto agreed = agree(std::move(own), micro_batches);
  gradients_.end(agreed.reached);
  if (!is_mean) {
    Tensor scored;
    for (const auto& part : agreed.parts)
      scored = scored.defined() ? scored + part.scored : part.scored;
    gradients_.divide(scored.clamp_min(1));
  }
  return losses_of(agreed.parts);
}

// One sum for all of it: a number a parameter, and a row a micro-batch, which other ranks leave 0.
Updater::Agreed Updater::agree(std::vector<Part> own, const MicroBatches& of) {
  auto reached = gradients_.reached();
  if (comm_.size() == 1) return {std::move(own), std::move(reached)};
  auto columns = at::full({1}, own.empty() ? 0 : 3 + std::ssize(own.front().aux), at::kLong);
  if (of.count < comm_.size()) comm_.broadcast(columns);  // a rank without one does not know
  const int64_t C = columns.item<int64_t>(), P = std::ssize(reached);
  auto numbers = at::zeros({P + of.count * C}, at::kDouble);
  const auto rows = numbers.narrow(0, P, of.count * C).view({of.count, C});
  auto* flags = numbers.data_ptr<double>();
  for (int64_t p = 0; p < P; ++p) flags[p] = reached[p] ? 1 : 0;
  for (int64_t n = 0; n < std::ssize(own); ++n) {
    const auto& part = own[n];
    std::vector<Tensor> row{part.nll, part.smoothed.defined() ? part.smoothed : at::zeros({}),
                            part.scored};
    for (const auto& aux : part.aux) row.push_back(aux.value);
    for (auto& number : row) number = number.to(at::kDouble);
    rows[of.number(n)].copy_(at::stack(row));
  }
  comm_.sum(numbers);
  Agreed agreed;
  for (int64_t p = 0; p < P; ++p) agreed.reached.push_back(flags[p] > 0);
  const auto like = own.empty() ? Part{} : own.front();
  const auto number = [&](const Tensor& x, const Tensor& as) {
    return as.defined() ? x.to(as.options()) : x;
  };
  for (int64_t n = 0; n < of.count; ++n) {
    const auto row = rows[n];
    Part part{number(row[0], like.nll),
              settings_.label_smoothing > 0 ? number(row[1], like.smoothed) : Tensor(),
              number(row[2], like.scored)};
    for (int64_t a = 0; a < std::ssize(like.aux); ++a)
      part.aux.push_back(
          {like.aux[a].name, number(row[3 + a], like.aux[a].value), like.aux[a].over});
    agreed.parts.push_back(std::move(part));
  }
  return agreed;
}

// What layers carry from update to update beside their parameters is made of the passes of their
// own rank: that of rank 0 holds.
void Updater::share_running_statistics() {
  if (comm_.size() == 1) return;
  std::vector<Tensor> kept, flat;
  for (const auto& buffer : model_->buffers())
    if (buffer.is_floating_point()) kept.push_back(buffer), flat.push_back(buffer.flatten());
  if (kept.empty()) return;
  auto all = at::cat(flat);
  comm_.broadcast(all);
  int64_t begin = 0;
  for (auto& buffer : kept) {
    buffer.copy_(all.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
    begin += buffer.numel();
  }
}

Tensor Updater::apply(int64_t step) {
  at::NoGradGuard no_grad;
  const auto norm = optimizer_.gradient_norm();
  if (settings_.clip > 0) optimizer_.clip(norm, settings_.clip);
  optimizer_.step(lr(step));
  optimizer_.zero_grad();
  for (auto* heads : heads_) (*heads)->after_step();
  share_running_statistics();
  return norm;
}

Updater::Result Updater::step(int64_t step, const MicroBatches& micro_batches, SiteProbes* probes) {
  Result result;
  result.losses = add_gradients(step, micro_batches, probes);
  result.grad_norm = apply(step);
  result.lr = lr(step);
  return result;
}

}  // namespace headlab
