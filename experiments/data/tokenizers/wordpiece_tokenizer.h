// WordPiece as BERT has it (Devlin et al., arXiv 1810.04805; Schuster & Nakajima 2012): words are
// normalised and cut into the longest pieces that the vocabulary has; "##" begins those inside a
// word.
#pragma once

#include "experiments/data/tokenizers/tokenizer.h"

namespace headlab {

struct WordPieceModel {
  std::vector<std::string> tokens;  // by id; "": none
  std::vector<std::string> specials = {};
  std::string unknown = "[UNK]";  // what a word is that has no pieces
  bool lower_case = true, strip_accents = true;
  TextFrame frame = {};
};

// DataError where a token occurs twice; where the unknown, a special or the frame is none.
std::shared_ptr<const Tokenizer> wordpiece_tokenizer(WordPieceModel model);

// The vocabulary of vocab.txt, a line a token; BERT's specials that it has, [CLS] and [SEP] around
// a text. DataError as decode_utf8.
WordPieceModel read_wordpiece(std::string_view vocabulary, const std::string& name);

}  // namespace headlab
