// Which answers may be right: what a guess is among, before anything is learned.
#pragma once

#include "experiments/data/source.h"

namespace headlab {

// DataSource::answers(); of data that state none every class, or every token but those that fill
// up, begin or hide, and, where words are hidden, end.
Answers answers_of(const DataSource& data, const Batch& batch);

// bool [V]: first .. end - 1.
Tensor ids_between(int64_t first, int64_t end, int64_t vocabulary);

}  // namespace headlab
