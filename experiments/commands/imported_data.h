// What an imported model, which has no data of its own, can be measured on.
#pragma once

#include <string>

#include "experiments/runs/open_run.h"

namespace headlab {

bool is_imported(const OpenedRun& run);

// Whether a text is all that it takes: tokens that predict each other, or a sentence to embed.
bool reads_text(const OpenedRun& run);
// Which option names data for it, as the end of a message.
std::string what_to_give(const OpenedRun& run);
// ConfigError naming what was given where that is a text, and the model reads none.
void require_text_reader(const OpenedRun& run, const std::string& given);

}  // namespace headlab
