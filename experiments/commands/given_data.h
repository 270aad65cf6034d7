// Other data than a run's own, for a command to measure on.
#pragma once

#include <optional>
#include <string>

#include "experiments/commands/command.h"
#include "experiments/runs/open_run.h"

namespace headlab {

// --data, --text: what a command measures on in place of the run's own data.
struct GivenData {
  std::optional<std::string> data, text;
  int64_t context = 0;  // of a window of text; 0: the model's, but no more than kWindow

  void visit(Arguments& a);
  // Opens it, or the run's own, which DataError says how to do without where they are gone. To be
  // trained on, a text file is split, and from then on the data of the run's experiment.
  void open(OpenedRun& run, bool to_train = false) const;
  // Likewise; but of an imported model that reads no text, and where none are given, run.data stays
  // null: what is done to it is then not measured.
  void open_if_any(OpenedRun& run, bool to_train = false) const;

 private:
  static constexpr int64_t kWindow = 1024;  // longer ones take memory by the vocabulary

  int64_t window(const OpenedRun& run) const;
  void open_to_train(OpenedRun& run) const;
  void open_given(OpenedRun& run) const;
};

}  // namespace headlab
