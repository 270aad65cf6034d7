// A decoder whose weights are written by hand, so that what its heads do is known: an induction
// circuit of two layers (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits";
// Olsson et al., arXiv 2209.11895).
//
//     (0,0)      attends to the token before and copies it into a subspace of its own
//     (1,0)      reads that subspace: attends to the tokens that once followed this one, and
//                predicts them; only it is heard in the logits
//     (l,1)      attends to all tokens alike, (l,2..) at random, the same for each token and place;
//                neither says anything: gate 0 changes no number
//
// How to use it: `hand_built_decoder({})` is a Model in float64, eval mode, for ids below the
// vocabulary: on random tokens repeated twice it predicts the second half. With
// `ctx.edit_heads = [](const std::string&, int64_t layer, HeadContext& heads) {...}` that sets
// heads.gates [1,H,1] to 0 at (0,0) or (1,0) it predicts nothing. `write_hand_built_run(path)`
// makes a finished run of it, for open_run() and the commands (float32). Programs that link no
// torch call the program kWriteHandBuilt PATH [DATA] for that.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "experiments/models/model.h"

namespace headlab::testing {

struct HandBuilt {
  int64_t vocabulary = 64, context = 128;
  int64_t heads = 4;      // a layer
  double sharpness = 30;  // scores of what a head looks for, above those of the rest
};

// The config's `model:` of it, in flow style.
std::string hand_built_yaml(const HandBuilt& wanted);

// Writes the circuit into a model made from that config.
void set_hand_built(Model& model, const HandBuilt& wanted);

std::shared_ptr<Model> hand_built_decoder(const HandBuilt& wanted);

// A finished run on `data` (a mapping in flow style, with absolute paths), which gives vocabulary
// and context.
constexpr const char* kHandBuiltData =
    "{kind: induction, symbols: 64, context: 128, eval_examples: 64}";
void write_hand_built_run(const std::filesystem::path& path,
                          const std::string& data = kHandBuiltData);

}  // namespace headlab::testing
