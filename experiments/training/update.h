// One update of a model: losses of the micro-batches, gradients, clipping, schedule, optimiser
// step. Training and the judging of training files run this and nothing else.
#pragma once

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/models/site_probes.h"
#include "experiments/runs/schedule.h"
#include "experiments/training/optimizer.h"

namespace headlab {

struct TrainOptions;

// Settings of `train:` for a model of width d_model, on data of TrainOptions::epoch_size().
Schedule schedule_of(const TrainOptions& options, int64_t d_model, int64_t epoch_size);
// Why a training of `steps` updates never reaches the schedule's peak; "": it does.
std::string unreached_rate(const Schedule& schedule, int64_t steps);
AdamW::Settings adamw_of(const TrainOptions& options);

// Half precision of forward passes on one device while it lives, where asked for.
class Autocast {
 public:
  Autocast(const at::Device& device, bool bf16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

// The batches of update `step` of a run.
std::vector<Batch> micro_batches(const TrainOptions& options, const DataSource& data, uint64_t seed,
                                 int64_t step);

class Updater {
 public:
  struct Settings {
    uint64_t seed = 0;
    double clip = 1;  // 0: gradients stay as they are
    double label_smoothing = 0;
    bool bf16 = false;  // forward passes in bfloat16
    Backend backend = Backend::kAuto;
    const Task* task = nullptr;  // DataSource::task(); null: prediction_task()
  };
  // Scalars on the model's device; reading one waits for it, nothing here does.
  struct Losses {
    Tensor nll;       // mean of -ln p over all scored targets of the update
    Tensor smoothed;  // the same with smoothed labels, which is optimised; undefined: nll is
    // One a name; weighted by its kind and, over the micro-batches, by their scored targets. In
    // neither of the above.
    std::vector<AuxLoss> aux;
  };
  struct Result {
    Losses losses;
    Tensor grad_norm;  // before clipping
    double lr = 0;
  };

  // Of the model as it is now: after an exchange of heads, or a move to another device or type,
  // make a new one. train() it before stepping.
  Updater(std::shared_ptr<Model> model, Schedule schedule, const AdamW::Settings& adamw,
          const Settings& settings);

  // Update `step` (from 0) with its micro-batches. The probes see all of them.
  Result step(int64_t step, const std::vector<Batch>& micro_batches, SiteProbes* probes = nullptr);

  // The losses of update `step` with the weights as they are: its draws, its precision.
  Losses measure(int64_t step, const std::vector<Batch>& micro_batches,
                 SiteProbes* probes = nullptr);
  // The two halves of step(): gradients of the whole update put into .grad, which is empty before,
  // then everything else.
  Losses add_gradients(int64_t step, const std::vector<Batch>& micro_batches,
                       SiteProbes* probes = nullptr);
  Tensor apply(int64_t step);  // -> gradient norm before clipping; gradients are gone afterwards

  double lr(int64_t step) const { return schedule_.at(step); }
  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  // Of one micro-batch: sums over its scored targets.
  struct Part {
    Tensor nll, smoothed, scored;  // smoothed undefined where labels are not
    std::vector<AuxLoss> aux;
    const Tensor& loss() const { return smoothed.defined() ? smoothed : nll; }  // to optimise
  };
  Part forward(int64_t draw, int64_t step, const Batch& batch, SiteProbes* probes);
  // Forward passes of all parts; each is visited with the scored targets of the whole update.
  using PartVisitor = std::function<void(const Part& part, const Tensor& scored)>;
  Losses pass(int64_t step, const std::vector<Batch>& micro_batches, SiteProbes* probes,
              const PartVisitor& visit);

  std::shared_ptr<Model> model_;
  at::Device device_;
  std::vector<std::shared_ptr<AttentionHeads>*> heads_;
  Schedule schedule_;
  Settings settings_;
  const Task& task_;
  AdamW optimizer_;
};

}  // namespace headlab
