#include "experiments/commands/imported_data.h"

#include <fmt/format.h>

#include "core/errors.h"

namespace headlab {

bool is_imported(const OpenedRun& run) { return run.experiment.data.kind() == "none"; }

bool reads_text(const OpenedRun& run) {
  const auto& shape = run.data_description.shape;
  return run.data_description.tokenizer && shape.source_vocabulary == 0 && shape.classes == 0;
}

std::string what_to_give(const OpenedRun& run) {
  const auto& shape = run.data_description.shape;
  if (reads_text(run)) return "--data FILE or --text TEXT measures on a text";
  if (shape.channels > 0)
    return fmt::format(
        "--data measures on images of {} by {} with {} channels and {} classes: '{{kind: mnist, "
        "images: FILE, labels: FILE}}', or the folder of CIFAR-10",
        shape.height, shape.width, shape.channels, shape.classes);
  if (shape.source_vocabulary > 0)
    return "--data FILE measures on lines of a text, a tab and its translation";
  if (shape.classes > 0) return "it tells classes of texts apart, and no kind of data here has any";
  return "it has no tokenizer; --data DIR measures on tokens (meta.json, train.bin, val.bin)";
}

void require_text_reader(const OpenedRun& run, const std::string& given) {
  if (!reads_text(run))
    throw ConfigError(given + ": is nothing for this model: " + what_to_give(run));
}

}  // namespace headlab
