// MAD's in-context recall (Poli et al., arXiv 2403.17844): pairs of the same keys, again and again,
// each of which tells its value once (pair_recall.h).
#include "experiments/data/tasks/pair_recall.h"

namespace headlab {
namespace {

const RegisterData<PairRecall> in_context_recall("in_context_recall",
                                                 "pairs of keys and values, again and again");

}  // namespace
}  // namespace headlab
