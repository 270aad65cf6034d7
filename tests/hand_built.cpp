// The induction circuit, number by number.
//
// The residual stream is four subspaces: the token, its place, the token before (written by head
// (0,0)) and the prediction (written by head (1,0)), one feature a token or place. Its squared norm
// is 2, 3, 4 before, between and behind the layers, wherever a head attends to one key alone, so
// that a weight turns the RMS norms into the identity.
#include "tests/hand_built.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/torch.h"
#include "experiments/inference/evaluate.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_manifest.h"
#include "experiments/training/training_metrics.h"
#include "experiments/training/update.h"

namespace headlab::testing {
namespace {

constexpr double kNormEps = 1e-6;
constexpr double kLogit = 20;  // of a token predicted with weight 1

struct Places {
  int64_t token, place, before, prediction, width;
};

Places places_of(const HandBuilt& w) {
  return {0, w.vocabulary, w.vocabulary + w.context, 2 * w.vocabulary + w.context,
          3 * w.vocabulary + w.context};
}

int64_t head_dim(const HandBuilt& w) { return std::max(w.vocabulary, w.context); }

// weight[row + c, column + c] = value for c < count.
void connect(const Tensor& weight, int64_t row, int64_t column, int64_t count, double value) {
  weight.narrow(0, row, count).narrow(1, column, count).diagonal().fill_(value);
}

struct Attention {
  Tensor q, k, v, o;
};

Attention attention_of(const NamedTensors& weights, int64_t layer) {
  const auto weight = [&](const char* name) {
    return weights.at(fmt::format("blocks.{}.attention.{}.weight", layer, name));
  };
  return {weight("q"), weight("k"), weight("v"), weight("o")};
}

// Heads 2.. look at random features, and say nothing.
void set_idle_heads(const Attention& layer, int64_t number, const HandBuilt& w) {
  const int64_t busy = 2 * head_dim(w), rest = layer.q.size(0) - busy;
  if (rest <= 0) return;
  auto generator = CounterRng{.seed = 5, .layer = number}.generator(CounterRng::kRows, at::kCPU);
  const double std = std::sqrt(0.5 / std::sqrt(head_dim(w)));  // scores of about 1
  for (const auto& weight : {layer.q, layer.k, layer.v}) {
    auto rows = weight.narrow(0, busy, rest);
    rows.copy_(at::normal(0., std, rows.sizes(), generator));
  }
}

void set_previous_token_head(const Attention& layer, const HandBuilt& w) {
  const auto places = places_of(w);
  // Feature t of a query at place t + 1 meets that of the key at place t.
  connect(layer.q, 0, places.place + 1, w.context - 1, w.sharpness);
  connect(layer.k, 0, places.place, w.context, 1);
  connect(layer.v, 0, places.token, w.vocabulary, 1);
  connect(layer.o, places.before, 0, w.vocabulary, 1);
}

void set_induction_head(const Attention& layer, const HandBuilt& w) {
  const auto places = places_of(w);
  connect(layer.q, 0, places.token, w.vocabulary, w.sharpness);
  connect(layer.k, 0, places.before, w.vocabulary, 1);
  // The first token has none before it; (0,0) copied itself there, which must not count.
  layer.k.narrow(0, 0, w.vocabulary).select(1, places.place).fill_(-1);
  connect(layer.v, 0, places.token, w.vocabulary, 1);
  connect(layer.o, places.prediction, 0, w.vocabulary, 1);
}

}  // namespace

std::string hand_built_yaml(const HandBuilt& w) {
  return fmt::format(
      "{{kind: decoder, layers: 2, d_model: {}, heads: {}, head_dim: {}, d_ff: 1, norm: rms, "
      "norm_eps: {}, position: learned, tie: false, attention: {{kind: mha, scale: 1.0}}}}",
      places_of(w).width, w.heads, head_dim(w), kNormEps);
}

void set_hand_built(Model& model, const HandBuilt& w) {
  at::NoGradGuard no_grad;
  const auto weights = module_tensors(model);
  for (const auto& p : model.parameters()) p.zero_();
  const auto places = places_of(w);
  const auto pass_norm = [&](const std::string& name, double squared_norm) {
    weights.at(name).fill_(std::sqrt(squared_norm / places.width + kNormEps));
  };
  connect(weights.at("embed.token.weight"), 0, places.token, w.vocabulary, 1);
  connect(weights.at("embed.position.weight"), 0, places.place, w.context, 1);
  pass_norm("blocks.0.norm1.weight", 2);
  pass_norm("blocks.1.norm1.weight", 3);
  pass_norm("norm.weight", 4);
  const auto first = attention_of(weights, 0), second = attention_of(weights, 1);
  set_previous_token_head(first, w);
  set_induction_head(second, w);
  set_idle_heads(first, 0, w);
  set_idle_heads(second, 1, w);
  connect(weights.at("head.weight"), 0, places.prediction, w.vocabulary, kLogit);
}

std::shared_ptr<Model> hand_built_decoder(const HandBuilt& w) {
  KindBlock block(model_registry(), "decoder");
  Problems problems;
  block.read(parse_config(hand_built_yaml(w), "hand-built"), "model", problems);
  problems.raise();
  auto model = model_kind("decoder").make(block.as<ModelOptions>(),
                                          {.vocabulary = w.vocabulary, .context = w.context});
  model->to(at::kDouble);
  model->eval();
  set_hand_built(*model, w);
  return model;
}

void write_hand_built_run(const std::filesystem::path& path, const std::string& data) {
  Experiment experiment;
  // The model's block waits for what the data say.
  read_config(experiment, parse_config("{name: hand_built, data: " + data + "}", "hand-built"));
  const auto source = open_data(experiment.data);
  const HandBuilt wanted{.vocabulary = source->vocabulary(), .context = source->context()};
  experiment = {};
  read_config(experiment, parse_config("{name: hand_built, data: " + data +
                                           ", model: " + hand_built_yaml(wanted) + "}",
                                       "hand-built"));
  const auto model = build_model(experiment, source->shape(), at::kCPU);
  set_hand_built(*model, wanted);
  model->eval();
  const Sample sample{source.get(), Split::kValidation, experiment.train.eval_batch};
  const auto measured = evaluate(*model, sample, {at::kCPU});
  write_run(path, experiment, describe_data(*source),
            untrained_checkpoint(*model, 0, measured.validation_loss()),
            manifest_of(experiment, *model, data_json(source->files()), at::kCPU),
            status_metrics(measured, source->task()));
}

}  // namespace headlab::testing
