// How many heads of a trained model can go, the least missed first, before its loss has risen.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>

namespace headlab {

// A head is missed where the validation loss rises by more than this without it. Nat.
inline constexpr double kUnmissedRise = 0.01;

struct SurvivingHeads {
  int64_t built = 0, kept = 0;  // kept: the fewest with which the loss rises by at most that
  double rise = 0;              // with those; nat
  int64_t examples = 0;         // of the validation split, that it was measured on
};

// Heads are ranked once by what the loss rises without each alone in ranking_sample(),
// and go in that order; the loss is measured after each on validation examples. Both are the first
// kBatches batches of train.eval_batch.
// RunError and DataError where the run or its data cannot be read.
SurvivingHeads surviving_heads(const std::filesystem::path& run);

// What was measured of runs, kept in a file: by the run's path. A file that is damaged counts as
// none.
class KeptSurvivors {
 public:
  explicit KeptSurvivors(std::filesystem::path file);
  std::optional<SurvivingHeads> find(const std::filesystem::path& run) const;
  void add(const std::filesystem::path& run, const SurvivingHeads& heads);  // RunError

 private:
  std::filesystem::path file_;
  std::map<std::filesystem::path, SurvivingHeads> known_;
};

}  // namespace headlab
