// Data that `--data` names and that are no text: a block of a config, or files that tell their
// kind.
#pragma once

#include <optional>

#include "experiments/runs/open_run.h"

namespace headlab {

// The block that `data` is ('{kind: mnist, images: ...}', or a .yaml file with one) or that opens
// it: of a directory of token files, of CIFAR-10's folder, of an IDX file beside its labels. None
// for any other file. `window`: tokens of an example, where the block does not say; `by_files`:
// whether files tell their kind, which is not asked of a run that has data of a kind.
std::optional<KindBlock> given_block(const std::string& data, int64_t window, bool by_files);

// Opens it for the model of a run. DataError or ConfigError where the two do not fit.
std::shared_ptr<DataSource> open_block(const KindBlock& block, const OpenedRun& run);

}  // namespace headlab
