// The files of ablate and analyze: one for each question.
#include "experiments/commands/answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "core/torch.h"
#include "experiments/files/sha256.h"
#include "experiments/models/site_heads.h"
#include "experiments/runs/run_files.h"
#include "experiments/text/utf8.h"
#include "experiments/text/with_commas.h"

namespace headlab {
namespace {

namespace fs = std::filesystem;

// What was opened, for people: "val of a.txt".
std::string source_of(const GivenData& given, const OpenedRun& run, Split split) {
  const auto files = run.data->files();
  if (given.text && files.empty()) {
    constexpr size_t kShown = 24;
    auto begin = given.text->substr(0, kShown);
    begin.resize(begin.size() - utf8_unfinished(begin));
    std::replace(begin.begin(), begin.end(), '\n', ' ');
    return fmt::format("the text '{}{}'", begin, begin.size() < given.text->size() ? "..." : "");
  }
  auto name = run.experiment.data.kind();
  if (given.data)
    name = fs::path(*given.data).filename().string();
  else if (files.size() == 1)
    name = files.front().filename().string();
  return split == Split::kWhole ? name : fmt::format("{} of {}", split_name(split), name);
}

// How that is not what the run is usually measured on, and which checkpoint, unless it is the last
// one, as words of a file's name. `files`: data_json() of what was read.
std::vector<std::string> source_words(const GivenData& given, const OpenedRun& run, Split split,
                                      const LocatedRun& located,
                                      const nlohmann::ordered_json& files) {
  std::vector<std::string> words;
  if (const auto& text = given.data ? given.data : given.text) {
    std::string contents;
    for (const auto& file : files) contents += file["sha256"].get<std::string>();
    const auto name = contents.empty() ? *text : fs::path(*text).stem().string();
    words.push_back(fmt::format("{}-{}-{}", given.data ? "data" : "text", file_word(name),
                                sha256(contents.empty() ? *text : contents).substr(0, 8)));
  }
  if (given.context > 0) words.push_back(fmt::format("context-{}", given.context));
  if (split != run.data->evaluated()) words.emplace_back(split_name(split));
  std::error_code none;
  if (!located.checkpoint.empty() &&
      !fs::equivalent(located.checkpoint, located.run / "ckpt/last", none))
    words.push_back(fmt::format("step-{}", run.step));
  return words;
}

// "val of a.txt, first 1,280 examples", at what is measured on examples, and at the roles that
// follow from it.
void note_source(std::vector<LabelledGroup>& groups, const std::string& source) {
  for (auto& group : groups)
    for (auto& array : group.arrays) {
      const auto examples = array.count_attributes.find("examples");
      if (examples == array.count_attributes.end()) {
        if (group.path.starts_with("roles/")) array.notes["measured"] = source;
        continue;
      }
      const bool whole = array.count_attributes.at("whole_split") != 0;
      array.notes["measured"] =
          fmt::format("{}, {}{} example{}", source, whole ? "" : "first ",
                      with_commas(examples->second), examples->second == 1 ? "" : "s");
    }
}

}  // namespace

std::string heads_word(const std::vector<std::string>& heads, Model& model) {
  auto text = fmt::format("{}", fmt::join(to_texts(parse_heads(heads, model)), "-"));
  std::replace(text.begin(), text.end(), ':', '.');
  std::replace(text.begin(), text.end(), '/', '-');
  constexpr size_t kLongest = 60;  // a file's name takes 255 bytes
  return "heads-" + (text.size() <= kLongest ? text : sha256(text).substr(0, 8));
}

OutputFile Answer::named_file(const OpenedRun& opened) const {
  auto read = opened.data->files();
  read.emplace_back(treebank);
  return {out, read, question.about};
}

void Answer::require_its_place(const OpenedRun& opened) const {
  if (out.empty())
    require_place(locate_run(run).run / (question.about + ".h5"));
  else
    std::ignore = named_file(opened);  // refuses by being made
}

fs::path Answer::write(const OpenedRun& opened, const std::string& title, const at::Device& device,
                       std::vector<LabelledGroup> groups) const {
  const auto located = locate_run(run);
  const auto manifest = manifest_of(opened, opened.experiment, *opened.model, device);
  note_source(groups, source_of(given, opened, split));
  const auto attributes =
      root_attributes(opened.experiment, title, located.run.filename().string(), manifest);
  if (!out.empty()) {
    named_file(opened).write(
        [&](const fs::path& file) { write_results(file, attributes, groups); });
    return out;
  }
  auto all = question;
  for (const auto& word : source_words(given, opened, split, located, manifest["data"]))
    all.measure.push_back(word);
  for (const auto& word : measure.words()) all.extent.push_back(word);
  const auto file = result_file(located.run, all, manifest, groups);
  write_results(file, attributes, groups);
  return file;
}

}  // namespace headlab
