// Masked language modelling (Devlin et al., arXiv 1810.04805): some words are hidden, and the model
// says which they were.
#pragma once

#include <map>

#include "experiments/data/text_stream.h"
#include "experiments/data/token_ids.h"

namespace headlab {

// Texts as blocks of shape.start, context - 2 words that follow each other, shape.end; a last one
// that is shorter is left out, so that every block has all its places and no batch a mask. Each
// word is chosen with p = 0.15, and of the chosen 80 % become shape.mask, 10 % a word drawn
// uniformly, 10 % stay: drawn anew each epoch, fixed in an evaluation. Words are all tokens but
// pad, start, end and mask, which the shape names; what is unknown is one of them. ids: of every
// split; where the only one is kWhole, it is the one that is evaluated; if that is a single block,
// it is drawn until a word is chosen, so that there is something to measure.
std::shared_ptr<DataSource> masked_text(const DataShape& shape,
                                        std::shared_ptr<const Tokenizer> tokenizer,
                                        std::map<Split, TokenIds> ids,
                                        std::vector<std::filesystem::path> files);

// A text by splits, in tokens.
struct TextPart {
  std::filesystem::path path;
  TokenIds ids = {};
};
using TextParts = std::map<Split, TextPart>;
// Each token predicts the next, or, as options and shape say, some are masked. `unit`: what
// messages call the tokens. DataError for a part that fills no example.
std::shared_ptr<DataSource> text_in_parts(const TextPartsOptions& options, DataShape shape,
                                          std::shared_ptr<const Tokenizer> tokenizer,
                                          TextParts parts, std::vector<std::filesystem::path> files,
                                          const std::string& unit);

}  // namespace headlab
