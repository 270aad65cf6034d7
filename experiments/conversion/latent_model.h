// A whole model's attention becomes multi-head latent attention, calibrated on its training data.
#pragma once

#include "experiments/conversion/convert_model.h"
#include "experiments/conversion/to_mla.h"
#include "experiments/inference/evaluate.h"

namespace headlab {

// Layers turn their keys by the tokens of the old model (step 2 of to_mla.h), and are compressed by
// those of the model in which all layers have done so. freqfold 0: doubled as long as the loss of
// that model on `tokens` falls. ConfigError where a layer cannot be converted.
ConvertedModel convert_to_mla(const OpenedRun& run, LatentSettings settings, const Sample& tokens,
                              const Compute& compute);

}  // namespace headlab
