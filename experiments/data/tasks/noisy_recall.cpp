// MAD's noisy in-context recall (Poli et al., arXiv 2403.17844): some pairs are noise of symbols of
// its own (pair_recall.h).
#include "experiments/data/tasks/pair_recall.h"

namespace headlab {
namespace {

struct NoisyRecall : PairRecall {
  struct Options : PairRecallOptions {
    Options() { symbols = 32, noise_symbols = 16, noise = 0.2; }
  };
  explicit NoisyRecall(const Options& options) : PairRecall(options) {}
};

const RegisterData<NoisyRecall> noisy_recall("noisy_recall",
                                             "pairs of keys and values with noise between");

}  // namespace
}  // namespace headlab
