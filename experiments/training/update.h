// One update of a model: losses of the micro-batches, gradients, clipping, schedule, optimiser
// step. Training and the judging of training files run this and nothing else.
#pragma once

#include "experiments/data/source.h"
#include "experiments/models/model.h"
#include "experiments/models/site_probes.h"
#include "experiments/ranks/comm.h"
#include "experiments/runs/schedule.h"
#include "experiments/training/gradients.h"
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

// The micro-batches of an update that this process passes through the model: of `count` over all
// ranks, those that are `rank` modulo `ranks`, in order.
struct MicroBatches {
  MicroBatches(std::vector<Batch> all)  // NOLINT(google-explicit-constructor)
      : batches(std::move(all)), count(std::ssize(batches)) {}
  MicroBatches(std::initializer_list<Batch> all) : MicroBatches(std::vector<Batch>(all)) {}
  MicroBatches(std::vector<Batch> own, int64_t of, const Comm& comm)
      : batches(std::move(own)), count(of), rank(comm.rank()), ranks(comm.size()) {}
  int64_t number(int64_t n) const { return rank + n * ranks; }  // of batches[n]

  std::vector<Batch> batches;
  int64_t count, rank = 0, ranks = 1;
};

// Of update `step` of a run; those of this rank.
MicroBatches micro_batches(const TrainOptions& options, const DataSource& data, uint64_t seed,
                           int64_t step, const Comm& comm = alone());

// Whether gradients are summed over the ranks after each round of a micro-batch a rank, and not
// once an update: all numbers of ranks then add the micro-batches in their order, and get the same
// bits.
bool sums_each_round(const TrainOptions& options, const Comm& comm);

class Updater {
 public:
  struct Settings {
    uint64_t seed = 0;
    double clip = 1;  // 0: gradients stay as they are
    double label_smoothing = 0;
    bool bf16 = false;  // forward passes in bfloat16
    Backend backend = Backend::kAuto;
    const Task* task = nullptr;  // DataSource::task(); null: prediction_task()
    Comm* comm = nullptr;        // of the run's ranks; null: one process
    bool each_round = true;      // sums_each_round()
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

  // Update `step` (from 0) with its micro-batches, by all ranks. The probes of rank 0 end with what
  // those of all ranks saw.
  Result step(int64_t step, const MicroBatches& micro_batches, SiteProbes* probes = nullptr);

  // The losses of update `step` with the weights as they are: its draws, its precision. By one
  // process, which has all micro-batches.
  Losses measure(int64_t step, const MicroBatches& micro_batches, SiteProbes* probes = nullptr);
  // The two halves of step(): gradients of the whole update put into .grad, which is empty before,
  // then everything else.
  Losses add_gradients(int64_t step, const MicroBatches& micro_batches,
                       SiteProbes* probes = nullptr);
  Tensor apply(int64_t step);  // -> gradient norm before clipping; gradients are gone afterwards

  double lr(int64_t step) const { return schedule_.at(step); }
  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  // Of one micro-batch: sums over its scored targets.
  struct Part {
    Tensor nll, smoothed, scored;  // smoothed undefined where labels are not
    std::vector<AuxLoss> aux = {};
    const Tensor& loss() const { return smoothed.defined() ? smoothed : nll; }  // to optimise
    Part detached() const;
  };
  Part forward(int64_t draw, int64_t step, const Batch& batch, SiteProbes* probes);
  Losses losses_of(const std::vector<Part>& parts) const;  // of the whole update
  // Of all ranks: the parts of an update, those of this rank being `own`, and which parameters have
  // a gradient.
  struct Agreed {
    std::vector<Part> parts;
    std::vector<bool> reached;
  };
  Agreed agree(std::vector<Part> own, const MicroBatches& of);
  void share_running_statistics();

  std::shared_ptr<Model> model_;
  at::Device device_;
  std::vector<std::shared_ptr<AttentionHeads>*> heads_;
  Schedule schedule_;
  Settings settings_;
  const Task& task_;
  Comm& comm_;
  AdamW optimizer_;
  Gradients gradients_;
};

}  // namespace headlab
