#include "experiments/conversion/latent_model.h"

#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/models/stack_options.h"
#include "experiments/system/output.h"

namespace headlab {
namespace {

// Stands in the place of a layer and counts the tokens that it reads.
class Listener : public AttentionHeads {
 public:
  explicit Listener(std::shared_ptr<AttentionHeads> heads)
      : AttentionHeads(heads->shape(), heads->traits()), heads_(std::move(heads)) {}

  const std::shared_ptr<AttentionHeads>& heads() const { return heads_; }
  const Tensor& moment() const { return moment_; }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall& call) override {
    const auto of_batch = token_moment(x, call.mask.query_length);
    moment_ = moment_.defined() ? moment_ + of_batch : of_batch;
    return heads_->forward(x, call);
  }

  std::shared_ptr<AttentionHeads> heads_;
  Tensor moment_;
};

// Of each layer of the one site that the model has.
std::vector<Tensor> moments_of(Model& model, const Sample& sample, const Compute& compute) {
  at::NoGradGuard no_grad;
  const auto site = model.sites().at(0);
  std::vector<std::shared_ptr<Listener>> listeners;
  for (size_t l = 0; l < site.layers.size(); ++l) {
    listeners.push_back(std::make_shared<Listener>(*site.layers[l]));
    model.exchange(site.name, static_cast<int64_t>(l), listeners.back());
  }
  for_each_batch(sample, compute.device,
                 [&](const Batch& b) { model.forward(b, {.backend = compute.backend}); });
  std::vector<Tensor> moments;
  for (size_t l = 0; l < listeners.size(); ++l) {
    moments.push_back(listeners[l]->moment());
    model.exchange(site.name, static_cast<int64_t>(l), listeners[l]->heads());
  }
  return moments;
}

// What is converted turns pairs of features that lie beside each other.
void lay_pairs_beside(ConfigNode& model) {
  auto* position = model.find("position");
  if (position && position->find("layout")) position->set("layout", write_text("interleaved"));
}

class LatentModel {
 public:
  LatentModel(const OpenedRun& run, const Sample& sample, const Compute& compute)
      : run_(run), sample_(sample), compute_(compute) {
    const auto stacks = run.experiment.model.as<ModelOptions>().stacks();
    if (stacks.size() != 1 || stacks[0]->cross())
      throw ConfigError("convert --to mla: is for models of one stack, without cross-attention");
    const auto& position = stacks[0]->position;
    if (!stacks[0]->position_at.ranges().empty())
      throw ConfigError("convert --to mla: layers with positions of their own cannot be converted");
    if (position->kind == "rope" && position->fraction < 1)
      throw ConfigError("convert --to mla: rope must turn all features of a head (fraction 1)");
    half_first_ = position->layout == "half";
    before_ = moments_of(*run.model, sample, compute);
  }

  // With step 2 done in all layers, and nothing compressed.
  ConvertedModel turned(LatentSettings settings) const {
    settings.balance.reset();
    settings.q_rank = 0;
    return converted(settings, before_, /*whole=*/true);
  }
  ConvertedModel compressed(const LatentSettings& settings, Model& turned) const {
    return converted(settings, moments_of(turned, sample_, compute_), /*whole=*/false);
  }
  double loss(Model& model) const { return evaluate(model, sample_, compute_).loss(); }

 private:
  ConvertedModel converted(const LatentSettings& settings, const std::vector<Tensor>& moments,
                           bool whole) const {
    size_t l = 0;
    return convert_model(
        run_,
        [&](const TrainedLayer& layer) {
          auto of_layer = settings;
          const int64_t d = layer.shape.head_dim;
          const int64_t r = layer.demands.rotary ? settings.rope_dim.value_or(d) : 0;
          if (whole) of_layer.kv_rank = 2 * layer.shape.kv_heads * d - r;
          const Calibration tokens{before_.at(l), moments.at(l)};
          ++l;
          return to_mla(layer, of_layer, tokens, half_first_);
        },
        compute_.device, lay_pairs_beside);
  }

  const OpenedRun& run_;
  const Sample& sample_;
  const Compute& compute_;
  bool half_first_ = true;
  std::vector<Tensor> before_;
};

}  // namespace

ConvertedModel convert_to_mla(const OpenedRun& run, LatentSettings settings, const Sample& tokens,
                              const Compute& compute) {
  const LatentModel model(run, tokens, compute);
  const auto shape = run.experiment.model.as<ModelOptions>().stacks()[0]->shape(0);
  const int64_t C =
      settings.rope_dim ? shape.head_dim / std::max<int64_t>(1, *settings.rope_dim) : 1;
  if (settings.freqfold > 0) return model.compressed(settings, *model.turned(settings).model);
  settings.freqfold = std::max<int64_t>(1, C);
  auto best = model.turned(settings);
  double least = model.loss(*best.model);
  while (shape.head_dim / 2 % (2 * settings.freqfold) == 0) {
    auto wider = settings;
    wider.freqfold *= 2;
    auto other = model.turned(wider);
    const double loss = model.loss(*other.model);
    tell("freqfold {}: loss {:.4f}, {}: {:.4f}", settings.freqfold, least, wider.freqfold, loss);
    if (!(loss < least)) break;
    settings = wider, best = std::move(other), least = loss;
  }
  return model.compressed(settings, *best.model);
}

}  // namespace headlab
