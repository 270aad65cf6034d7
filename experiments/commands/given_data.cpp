#include "experiments/commands/given_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/given_block.h"
#include "experiments/data/given/given_lines.h"
#include "experiments/data/given/sentences.h"
#include "experiments/data/given/text_or_file.h"
#include "experiments/system/output.h"

namespace headlab {

void GivenData::visit(Arguments& a) {
  a.option("--data", data,
           "other data to measure on: a text file, not split; of translations lines with a tab; a "
           "block, '{kind: mnist, images: F, labels: F}'; or the folder of tokens or CIFAR-10");
  a.option(
      "--text", text,
      "a text to measure on, or the file that holds it; one word with a / or an extension names "
      "a file");
  a.option("--context", context,
           "tokens of a window of that text (default: the model's; of imported models 1024)",
           Arguments::kAboveZero);
}

namespace {

// Such a model has no data of its own.
bool is_imported(const OpenedRun& run) { return run.experiment.data.kind() == "none"; }

// Whether a text is all that it takes: tokens that predict each other, or a sentence to embed.
bool reads_text(const OpenedRun& run) {
  const auto& shape = run.data_description.shape;
  return run.data_description.tokenizer && shape.source_vocabulary == 0 && shape.classes == 0;
}

// Which option names data for it, as the end of a message.
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

std::shared_ptr<DataSource> sentences_for(OpenedRun& run, const NamedText& given) {
  if (!run.data_description.tokenizer)
    throw ConfigError(given.name + ": the model has no tokenizer, so no text can be measured on");
  return sentences(run.data_description, given.text, given.name, given.files,
                   [&](const Batch& batch) {
                     torch::InferenceMode inference;
                     const auto device = run.model->parameters().front().device();
                     return run.model->forward(batch.to(device), {}).logits;
                   });
}

// The data that the run was trained on.
void open_data_of(OpenedRun& run) {
  if (is_imported(run))
    throw ConfigError("the run was imported and has no data of its own; " + what_to_give(run));
  if (run.data) return;
  try {
    run.data = open_own_data(run.experiment, run.data_description);
  } catch (const DataError& error) {
    if (run.data_description.shape.source_vocabulary > 0) throw;  // one text is no pair of them
    throw DataError(fmt::format("{}; --data FILE or --text TEXT measures on others", error.what()));
  }
}

}  // namespace

int64_t GivenData::window(const OpenedRun& run) const {
  const int64_t own = run.data_description.shape.context;
  if (const auto most = run.model->longest(); most && context > *most)
    throw ConfigError(fmt::format(
        "--context {}: the model reads at most {} tokens; its positions, or weights of its heads, "
        "end there",
        context, *most));
  if (context > 0) return context;
  return run.experiment.data.kind() == "none" ? std::min(own, kWindow) : own;
}

void GivenData::open_to_train(OpenedRun& run) const {
  if (!data) throw ConfigError("--text: training needs a file that is split; --data FILE");
  ConfigNode options;
  options.set("kind", write_text("text"));
  options.set("path", write_text(std::filesystem::absolute(*data).string()));
  options.set("tokenizer", write_text(run.path.string()));
  options.set("context", ConfigNode::scalar(std::to_string(window(run))));
  if (run.data_description.shape.mask) options.set("objective", write_text("masked"));
  Problems problems;
  run.experiment.data.read(options, "data", problems);
  problems.raise();
  run.data = open_data(run.experiment.data);
}

void GivenData::open_given(OpenedRun& run) const {
  if (data && run.data_description.shape.source_vocabulary > 0) {
    run.data = given_lines(run.data_description, *data);
    return;
  }
  const auto* tokenizer = run.data_description.tokenizer.get();
  if (!run.model->predicts()) {
    const auto given =
        data ? text_of_file(*data, tokenizer) : text_or_file("--text", *text, tokenizer);
    run.data = sentences_for(run, given);
    return;
  }
  if (is_imported(run)) require_text_reader(run, data ? "--data " + *data : "--text");
  auto description = run.data_description;
  const int64_t trained = description.shape.context;
  description.shape.context = window(run);
  if (context > trained)
    tell("windows of {} tokens, of which the model was trained on {}", context, trained);
  if (data) {
    run.data = open_other_data(run.experiment, description, *data);
  } else {
    const auto given = text_or_file("--text", *text, tokenizer);
    run.data = open_text(run.experiment, description, given.text, given.name, given.files);
  }
}

void GivenData::open(OpenedRun& run, bool to_train) const {
  if (data && text) throw ConfigError("--data and --text: name one of the two");
  if (context > 0 && !data && !text) throw ConfigError("--context: is of --data or --text");
  const auto block = data ? given_block(*data, window(run), is_imported(run)) : std::nullopt;
  if (block) {
    run.data = open_block(*block, run);
    if (to_train) run.experiment.data = *block;
  } else if ((data || text) && to_train) {
    open_to_train(run);
  } else if (data || text) {
    open_given(run);
  } else {
    open_data_of(run);
  }
}

void GivenData::open_if_any(OpenedRun& run, bool to_train) const {
  const bool asked = data || text || context > 0 || to_train;
  if (asked || !is_imported(run) || reads_text(run)) open(run, to_train);
}

}  // namespace headlab
