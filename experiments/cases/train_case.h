// A training file: nanoGPT's settings, first weights, batches and expected numbers of a training,
// in one safetensors file (`headlab_train`).
#pragma once

#include <memory>
#include <optional>

#include "experiments/cases/case_file.h"
#include "experiments/training/update.h"

namespace headlab {

class TrainCase {
 public:
  // Builds a decoder of the weights' type, or of `type`. DataError where the file is wrong or its
  // tensors do not fit.
  TrainCase(const std::filesystem::path& path, const Compute& compute,
            std::optional<at::ScalarType> type = std::nullopt)
      : TrainCase(CaseFile(path), compute, type) {}
  TrainCase(const CaseFile& file, const Compute& compute,
            std::optional<at::ScalarType> type = std::nullopt);

  // Runs the whole training: out.losses, out.lrs, out.grad_norms, out.logits.first and .last,
  // grad.<parameter> of the first step, out.w.<parameter> at the end. Once: the weights move.
  NamedTensors compute();

  const NamedTensors& expected() const { return expected_; }  // out.* and grad.*
  Tolerance tolerance() const { return tolerance_; }          // of the type it runs in

 private:
  void take_all(const CaseFile& file, std::optional<at::ScalarType> type);
  void build(const CaseFile& file);
  void take_weights(const CaseFile& file, NamedTensors tensors);
  Batch micro_batch(int64_t step, int64_t part) const;
  Tensor logits() const;  // of the first batch

  Compute compute_;
  at::ScalarType type_ = at::kFloat;
  Tolerance tolerance_;
  Tensor ids_, targets_;  // [steps, micro-batches, B, T]
  std::shared_ptr<Model> model_;
  std::unique_ptr<Updater> updater_;
  NamedTensors expected_;
};

}  // namespace headlab
