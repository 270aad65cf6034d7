// How BERT normalises a text and cuts it into words, before these become pieces.
#pragma once

#include "experiments/text/unicode.h"

namespace headlab {

struct BertNormalizer {
  bool lower_case = true, strip_accents = true;

  // Controls dropped, white space as spaces, spaces around CJK ideographs; then NFD without marks,
  // and lower case.
  PlacedChars operator()(const PlacedChars& chars) const;
};

// What spaces separate; each punctuation mark is a word.
std::vector<PlacedChars> bert_words(const PlacedChars& normalized);

}  // namespace headlab
