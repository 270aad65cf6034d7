// A signal while the whole split is measured, behind the last update.
#include <csignal>

#include "experiments/system/exit_codes.h"
#include "experiments/training/training_state.h"
#include "tests/checkpoint_testing.h"
#include "tests/scratch.h"
#include "tests/sent_signal.h"
#include "tests/training_testing.h"

namespace headlab::test_last_measurement {
namespace {

using namespace training_testing;
using testing::load_checkpoint;

// Data that raise a signal when the examples of `split` from `first` on are measured, behind the
// update `last`.
class Interrupting : public DataSource {
 public:
  Interrupting(std::shared_ptr<DataSource> data, int64_t last, Split split, int64_t first)
      : data_(std::move(data)), last_(last), split_(split), first_(first) {}
  int64_t vocabulary() const override { return data_->vocabulary(); }
  int64_t context() const override { return data_->context(); }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const override {
    step_ = step;
    return data_->train_batch(seed, step, first, count);
  }
  int64_t examples(Split split) const override { return data_->examples(split); }
  Batch eval_batch(Split split, int64_t first, int64_t count) const override {
    if (step_ == last_ && split == split_ && first == first_) send_and_wait(SIGINT);
    return data_->eval_batch(split, first, count);
  }

 private:
  std::shared_ptr<DataSource> data_;
  int64_t last_;
  Split split_;
  int64_t first_;
  mutable int64_t step_ = 0;
};

TEST_CASE("a run that a signal stops while the whole split is measured ends as one that was not",
          "[training]") {
  // With and without a line of the last step, which has the loss of training; ended early too; the
  // signal comes while validation is measured, or the test part behind it.
  for (const auto& [more, test] :
       {std::pair("", ""), {", early_stop: {patience: 1}, lr: 1.0e-30", "val"}, {"", "test"}})
    for (const int64_t every : {1, 100}) {
      INFO(more << " " << test << " " << every);
      const Scratch folder;
      auto config = small("mha", std::string(", eval_batch: 2") + more);
      if (*test) config.replace(config.find("eval_examples"), 0, "test: own, ");
      auto experiment = experiment_of(config);
      experiment.log.every = every;
      REQUIRE(run_in(folder / "whole", experiment).exit_code == kDone);
      const auto last = load_latest(folder / "whole")->step;

      const auto data = std::make_shared<Interrupting>(open_data(experiment.data), last - 1,
                                                       split_named(*test ? test : "val"), 4);
      auto model = build_model(experiment, data->shape(), at::kCPU);
      const fs::path path = folder / "parts";
      auto directory = std::make_optional(RunDirectory::create(path, "name: small\n", {}));
      const auto outcome = train(experiment, model, *data, {at::kCPU}, *directory, {});
      directory->end(outcome.status);
      directory.reset();
      CHECK(outcome.exit_code == 130);
      CHECK(outcome.status.state == RunState::kStopped);
      CHECK(outcome.status.reason == kMeasurementCutShort);
      const auto& stopped = outcome.status.metrics;
      CHECK((stopped.count("val/step") == 0 || stopped.at("val/step") < static_cast<double>(last)));
      CHECK(load_latest(path)->step == last);

      // Also where a process was killed when it had measured, and before it had saved that.
      fs::copy(path / "ckpt", folder / "unmeasured",
               fs::copy_options::recursive | fs::copy_options::copy_symlinks);
      REQUIRE(run_in(path, experiment, /*resume=*/true).exit_code == kDone);
      fs::remove_all(path / "ckpt");
      fs::rename(folder / "unmeasured", path / "ckpt");
      REQUIRE(run_in(path, experiment, /*resume=*/true).exit_code == kDone);
      CHECK(metrics_of(path) == metrics_of(folder / "whole"));
      CHECK(read_metrics(path / "metrics.jsonl").back().values.count("test/loss") ==
            (*test ? 1 : 0));
      const auto a = load_checkpoint(folder / "whole/ckpt/last"),
                 b = load_checkpoint(path / "ckpt/last");
      require_same_tensors(a.optimizer.value(), b.optimizer.value());
      const auto then = TrainingState::of(a), now = TrainingState::of(b);
      CHECK((then.best == now.best && then.since_best == now.since_best));
      CHECK_FALSE(now.unmeasured);
      CHECK(fs::read_symlink(folder / "whole/ckpt/best") == fs::read_symlink(path / "ckpt/best"));
    }
}

}  // namespace
}  // namespace headlab::test_last_measurement
