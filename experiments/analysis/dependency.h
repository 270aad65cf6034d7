// Attention against the dependency relations of a treebank: accuracies of
// heads, and what a fixed place reaches. Clark et al. 2019, arXiv 1906.04341; Voita et al. 2019,
// arXiv 1905.09418.
//
// n words of a sentence, L layers, H heads, R relations, of which the first is "all": every word.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace headlab {

using at::Tensor;

// Attention between tokens to attention between words: to a word is the sum of its columns, from a
// word the mean of its rows. word [T] int64: the word of each token, 0 .. words - 1, -1: of none,
// whose rows and columns are dropped. Rows sum to what they put on words. a [...,T,T] ->
// [...,words,words] float64. c10::Error where a word has no token.
Tensor align_words(const Tensor& a, const Tensor& word, int64_t words);

// The words of one sentence.
struct Dependencies {
  std::vector<int64_t> heads;      // [n] 1..n; 0: the root
  std::vector<int64_t> relations;  // [n] 1..R-1
};

// Sums over sentences. Row i of a map predicts the head of word i as its heaviest other word
// (direction `dependent_row`), column i likewise (`head_column`); ties: the first word. The root
// has no word to point at, so its prediction is always wrong.
class DependencyScores {
 public:
  DependencyScores(int64_t layers, int64_t heads, int64_t relations);

  // a [L,H,n,n]: weights between the words of one sentence, without special tokens.
  void add(const Tensor& a, const Dependencies& words);

  // Share of the words of a relation whose head is predicted: [2,L,H,R] float64, NaN where there is
  // no such word.
  Tensor accuracy() const;
  // Share of the head words of a relation whose row is heaviest at one of their dependents of that
  // relation: [L,H,R], NaN where there is none, as for "all" and the root.
  Tensor accuracy_head_row() const;

 private:
  Tensor right_, head_right_;  // [2,L,H,R], [L,H,R]
  Tensor count_, head_count_;  // [R]
};

class DependencyBaselines {
 public:
  DependencyBaselines(int64_t relations, std::vector<int64_t> offsets);

  void add(const Dependencies& words);

  // Clark: word i of 1..n has the head clip(i + offset, 0, n), 0 the root: [offsets,R] share that
  // is right.
  Tensor fixed_offset() const;
  // Voita: [0]: share of the commonest relative place, [1]: that place; from dependent to head, and
  // back: [2,2,R]. Of words that have a head; NaN without one and for "all". Ties: the nearer, then
  // the one before.
  Tensor relative_place() const;
  Tensor count() const { return count_; }  // [R] words

 private:
  std::vector<int64_t> offsets_;
  Tensor right_, count_;                            // [offsets,R], [R]
  std::vector<std::map<int64_t, int64_t>> places_;  // [R] head - dependent -> words
};

}  // namespace headlab
