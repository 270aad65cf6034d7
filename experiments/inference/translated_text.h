// Texts that a model translates, and how near they come to those that people wrote.
#pragma once

#include "experiments/data/data_description.h"
#include "experiments/inference/bleu.h"
#include "experiments/inference/translate.h"

namespace headlab {

// Whether it reads one text and writes another.
bool translates(const DataShape& shape);
// Why the heads that write cannot keep a cache, "" where they can. ConfigError where the model does
// not write, or its heads see later tokens; `command` is whose error it is.
std::string why_no_cache(Model& model, const ModelOptions& options, const std::string& command);

// Texts as a batch of sources: each ends in shape.end, shorter ones are filled up with shape.pad.
// DataError `name:line: ...` for a text that is no tokens, and one longer than the model reads.
Batch sources_of(const std::vector<std::string>& lines, const DataDescription& description,
                 const std::string& name, int64_t first_line = 1);
// Without the id that ends it.
std::string text_of(const Translated& translated, const DataDescription& description);

// Hands on the translation of every line of a file, in order, `batch` lines at a time.
void translate_lines(Model& model, const DataDescription& description,
                     const std::filesystem::path& file, int64_t batch, const BeamOptions& options,
                     const Compute& compute, const std::function<void(const std::string&)>& emit);

// What bleu_of() measures with a beam of 1.
const TaskMetric& bleu_metric();
// Of every example of a split, `batch` at a time, against DataSource::written(); ranks of a run
// share the batches, and all get the whole.
Bleu bleu_of(Model& model, const DataSource& data, Split split, int64_t batch,
             const BeamOptions& options, const Compute& compute);

}  // namespace headlab
