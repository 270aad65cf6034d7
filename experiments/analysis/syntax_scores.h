// Syntactic heads: a model's attention against the relations of a treebank, as arrays of
// /analysis/<site> and /roles/<site>.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/analysis/dependency.h"
#include "experiments/data/formats/treebank.h"
#include "experiments/data/source.h"
#include "experiments/logs/result_arrays.h"
#include "experiments/models/site_heads.h"

namespace headlab {

// Sentences as a model reads them. Words are those of the text: a token between words is of none.
struct EncodedTreebank {
  struct Sentence {
    std::vector<int64_t> ids, words;  // [T]; the word of each token, -1: none
    Dependencies dependencies;
  };
  // Sentences that the model cannot read: with more tokens than its context; with text that is not
  // in its vocabulary; with words that share a token, or have none.
  struct LeftOut {
    int64_t too_long = 0, not_encoded = 0, not_aligned = 0;
  };
  std::vector<std::string> relations;  // relations_of() all sentences
  std::vector<Sentence> sentences;
  LeftOut left_out;
};

// Each sentence begins with the source's first token of class kCls, where it has one. DataError
// where the source has no text, or none of the sentences can be read.
EncodedTreebank encode_treebank(const std::vector<TreebankSentence>& treebank,
                                const DataSource& data, int64_t context);

struct SyntaxOptions {
  int64_t batch = 16;
  std::vector<int64_t> offsets{-3, -2, -1, 0, 1, 2};  // of Clark's baseline
  int64_t least_cases = 100;  // relations with fewer words make no head syntactic
  double margin = 0.10;       // over the commonest place, for the role
};

// L layers, H heads by original index, R relations; NaN for heads that are gone, layers whose kind
// has no map over tokens, and relations without a case.
struct SyntaxScores {
  SyntaxOptions options;
  std::vector<std::string> relations;
  int64_t sentences = 0;
  EncodedTreebank::LeftOut left_out;
  Tensor accuracy;           // [2,L,H,R] dependent_row, head_column
  Tensor accuracy_head_row;  // [L,H,R]
  Tensor baseline;           // [offsets,R] of the sentences that were read, as all that follows
  Tensor baseline_offset;    // [2,2,R] share and place, from dependent to head and back
  Tensor count;              // [R]
};

// Runs the model, which is in eval mode, over the sentences. Maps are the weights before heads are
// mixed (dcmha, talking, reattention). Nothing where no layer has a map over tokens.
std::optional<SyntaxScores> score_syntax(Model& model, const SiteHeads& heads,
                                         const EncodedTreebank& treebank,
                                         const SyntaxOptions& options, const Compute& compute = {});

// Of each head the relation and direction whose accuracy is furthest above the share of the
// commonest place (Voita's baseline), all [L,H]; NaN where there is none. punct, root, "all" and
// rare relations are left out. accuracy_head_row counts head words, the share dependents: where a
// word has two dependents of a relation a fixed place can score above the share, so that it is not
// held against it here.
struct BestRelations {
  Tensor relation, direction;  // indices
  Tensor accuracy, gain;       // gain = accuracy - share
};
BestRelations best_relations(const SyntaxScores& scores);

// Adds the arrays to analysis/<site>, with the axes that the group does not have yet: relation,
// direction and fixed_offset beside layer and head.
void add_syntax(LabelledGroup& analysis, const SyntaxScores& scores);

}  // namespace headlab
