// How far a run is, for a person who watches: one live line on a terminal, plain lines elsewhere.
// No torch in here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace headlab {

// Where progress goes, and how.
struct ProgressOutput {
  std::FILE* file = stderr;
  bool terminal = false, color = false;
  int width = 80;                   // columns of the terminal
  std::string counted = "step";     // what is counted
  std::function<double()> seconds;  // a clock that never goes back; empty: the machine's

  // stderr as it is: a terminal unless TERM is dumb; colours unless NO_COLOR is set.
  static ProgressOutput standard(std::string counted = "step");
};

// A terminal's line is rewritten at most 10 times a second. Elsewhere a line is written when
// `every` steps and 10 s have passed since the last one, and one at the end. Errors of writing are
// ignored: progress is no part of a run.
class Progress {
 public:
  // Counts from `first_step` (0, or where a run resumes) to `total`.
  Progress(int64_t first_step, int64_t total, int64_t every,
           ProgressOutput output = ProgressOutput::standard());
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // leaves the cursor on a fresh line

  // After a step. `tokens`: of this step. `loss`: of the last step that has one at hand.
  void step(int64_t step, int64_t tokens, std::optional<double> loss = std::nullopt);
  void validation(double loss);
  // While something is measured between two steps or behind the last one.
  void measured(int64_t examples, int64_t of);
  // A line of its own, such as a warning; the live line stays below it.
  void say(const std::string& text);
  void finish();  // the last line stays; nothing is written after it

 private:
  std::string line() const;
  void draw();
  void put(const std::string& text);

  ProgressOutput output_;
  int64_t total_, every_, step_, drawn_step_;
  double started_, stepped_at_, drawn_at_;  // seconds
  std::optional<double> loss_, validation_;
  int64_t validated_ = 0;  // step of the validation loss
  struct {
    int64_t examples = 0, of = 0, first = 0;  // the speed is that since the first so many
    double since = 0;
  } measured_;  // under way where there are examples
  struct {
    double seconds = 0, tokens = 0, steps = 0;
  } recent_;           // sums in which the past fades
  bool live_ = false;  // the cursor stands behind a line that will be rewritten
  bool finished_ = false;
};

}  // namespace headlab
