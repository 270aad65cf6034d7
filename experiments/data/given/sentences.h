// Sentences for a model that says nothing of them but where they lie: what a change of the model
// did is how far each has moved.
#pragma once

#include <functional>

#include "experiments/data/data_description.h"

namespace headlab {

// One split, kWhole, a line of the text a sentence, between shape.start and shape.end where there
// are such tokens; lines without a word are left out. `embed` gives the sentences [B,T] of a batch
// (its ids and length) their places [B,D] before any change: Batch::reference. DataError with the
// line for a sentence longer than the context.
std::shared_ptr<DataSource> sentences(const DataDescription& description, std::string_view text,
                                      const std::string& name,
                                      std::vector<std::filesystem::path> files,
                                      const std::function<Tensor(const Batch&)>& embed);

}  // namespace headlab
