// The formats `align-1` and `dependency-1`: maps of subwords to maps of
// words, and heads against a treebank.
#include "core/torch.h"
#include "experiments/analysis/dependency.h"
#include "experiments/cases/case_file.h"

namespace headlab {
namespace {

NamedTensors align(const CaseFile& file) {
  const auto& word = file.at("in.word");
  const int64_t words = word.numel() > 0 ? word.max().item<int64_t>() + 1 : 0;
  return {{"out.attention", align_words(file.at("in.attention"), word, words)}};
}

NamedTensors score(const CaseFile& file) {
  const auto &maps = file.at("in.attention"), &heads = file.at("in.heads");  // [N,L,H,n+2,n+2]
  const auto &length = file.at("in.length"), &relation = file.at("in.relation");
  if (maps.dim() != 5) file.refuse("in.attention must be [N,L,H,n+2,n+2]");
  const int64_t relations = file.settings().relations();
  DependencyScores scores(maps.size(1), maps.size(2), relations);
  DependencyBaselines baselines(relations, file.settings().offsets());
  for (int64_t s = 0; s < maps.size(0); ++s) {
    const int64_t n = length[s].item<int64_t>();
    const Dependencies words{integers_of(heads[s].narrow(0, 0, n)),
                             integers_of(relation[s].narrow(0, 0, n))};
    // Special tokens stand before the first and behind the last word.
    scores.add(maps[s].narrow(-2, 1, n).narrow(-1, 1, n), words);
    baselines.add(words);
  }
  return {{"out.accuracy", scores.accuracy()},
          {"out.accuracy_head_row", scores.accuracy_head_row()},
          {"out.baseline", baselines.fixed_offset()},
          {"out.baseline_offset", baselines.relative_place()},
          {"out.count", baselines.count()}};
}

const RegisterCase alignments("align-1", align);
const RegisterCase dependencies("dependency-1", score);

}  // namespace
}  // namespace headlab
