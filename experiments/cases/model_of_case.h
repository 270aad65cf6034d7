// The whole model that a file of expected numbers is of.
#pragma once

#include "experiments/cases/case_file.h"
#include "experiments/pretrained/hugging_face.h"

namespace headlab {

// What --model names, a folder in Hugging Face's layout, a .gguf file or a run; the files beside
// the case where it names nothing. `type`: of published weights. On `device`, not training.
HuggingFaceModel model_of_case(const CaseFile& file, at::ScalarType type, const at::Device& device);

// The ids of a prompt and the likeliest behind them.
Tensor continued(Model& model, const Tensor& prompt, int64_t tokens, const Compute& compute);

// Judges files of whole models whose inputs are texts, one beside the other (in.<n>.ids): what a
// language model makes of each.
NamedTensors numbers_of_texts(const CaseFile& file, HuggingFaceModel& made, const Compute& compute);
// The same of sentences (in.ids [N,T], in.mask) that an encoder embeds.
NamedTensors numbers_of_sentences(const CaseFile& file, HuggingFaceModel& made,
                                  const Compute& compute);

}  // namespace headlab
