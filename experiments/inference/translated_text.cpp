#include "experiments/inference/translated_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/formats/plain_text.h"
#include "experiments/files/git_lfs.h"
#include "experiments/inference/evaluate.h"
#include "experiments/models/stack_options.h"
#include "experiments/ranks/comm.h"

namespace headlab {

bool translates(const DataShape& shape) {
  return shape.source_vocabulary > 0 && shape.pad && shape.start && shape.end;
}

std::string why_no_cache(Model& model, const ModelOptions& options, const std::string& command) {
  if (!model.writes())
    throw ConfigError(command + ": this model says nothing token by token; decoder and seq2seq do");
  std::string why;
  for (const auto& site : model.sites()) {
    if (!site.within_ids()) continue;
    for (size_t layer = 0; layer < site.layers.size(); ++layer) {
      const auto& traits = (*site.layers[layer])->traits();
      if (traits.causal && traits.decodes) continue;
      const auto heads =
          fmt::format("'{}' heads (layer {})",
                      kind_of_heads(options, site.name, static_cast<int64_t>(layer)), layer);
      if (!traits.causal)
        throw ConfigError(fmt::format("{}: {} are not causal: they cannot decode", command, heads));
      if (why.empty()) why = heads + " cannot decode with a cache";
    }
  }
  return why;
}

Batch sources_of(const std::vector<std::string>& lines, const DataDescription& description,
                 const std::string& name, int64_t first_line) {
  const auto& shape = description.shape;
  std::vector<std::vector<int64_t>> rows;
  int64_t longest = 0;
  for (const auto& line : lines) {
    const auto where = fmt::format("{}:{}", name, first_line + std::ssize(rows));
    decode_utf8(line, where, [](char32_t) {});  // refuses what is none
    auto& row = rows.emplace_back(description.source_tokenizer->encode(line, where).ids);
    row.push_back(*shape.end);
    if (std::ssize(row) > shape.source_context)
      throw DataError(fmt::format("{}: has {} tokens, the model reads {}", where,
                                  std::ssize(row) - 1, shape.source_context - 1));
    longest = std::max(longest, std::ssize(row));
  }
  Batch batch{.source = at::full({std::ssize(rows), longest}, *shape.pad, at::kLong),
              .source_length = at::empty({std::ssize(rows)}, at::kLong)};
  for (int64_t n = 0; n < std::ssize(rows); ++n) {
    batch.source[n].slice(0, 0, std::ssize(rows[n])).copy_(at::tensor(rows[n], at::kLong));
    batch.source_length[n] = std::ssize(rows[n]);
  }
  return batch;
}

std::string text_of(const Translated& translated, const DataDescription& description) {
  auto ids = translated.ids;
  if (!ids.empty() && ids.back() == description.shape.end) ids.pop_back();
  return description.tokenizer->decode(ids);
}

void translate_lines(Model& model, const DataDescription& description,
                     const std::filesystem::path& file, int64_t batch, const BeamOptions& options,
                     const Compute& compute, const std::function<void(const std::string&)>& emit) {
  std::ifstream in(file, std::ios::binary);  // not mapped: it may be a pipe
  if (!in || std::filesystem::is_directory(file))
    throw DataError(file.string() + ": cannot be read");
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  int64_t first = 1;
  std::vector<std::string> lines;
  const auto translate_them = [&] {
    if (lines.empty()) return;
    const auto sources = sources_of(lines, description, file.string(), first);
    for (const auto& text : translate(model, sources, description.shape, options, compute))
      emit(text_of(text, description));
    first += std::ssize(lines);
    lines.clear();
  };
  if (const auto complaint = git_lfs_complaint(bytes); !complaint.empty())
    throw DataError(fmt::format("{}: {}", file.string(), complaint));
  each_line(plain_text(bytes, file.string()), [&](std::string_view line, int64_t) {
    lines.emplace_back(line);
    if (std::ssize(lines) == batch) translate_them();
  });
  translate_them();
}

const TaskMetric& bleu_metric() {
  static const TaskMetric metric{
      "bleu", "1", "BLEU, greedy",
      "100 BP (p_1 p_2 p_3 p_4)^(1/4) of n-grams of tokens, one reference, over the whole split",
      /*higher_is_better=*/true};
  return metric;
}

namespace {

void sum_over_ranks(Bleu& bleu, Comm& comm) {
  std::vector<int64_t*> counts{&bleu.hypothesis_tokens, &bleu.reference_tokens};
  for (auto& count : bleu.matches) counts.push_back(&count);
  for (auto& count : bleu.totals) counts.push_back(&count);
  std::vector<int64_t> numbers;
  for (const auto* count : counts) numbers.push_back(*count);
  auto sums = at::tensor(numbers, at::kLong);
  comm.sum(sums);
  for (size_t i = 0; i < counts.size(); ++i)
    *counts[i] = sums[static_cast<int64_t>(i)].item<int64_t>();
}

}  // namespace

Bleu bleu_of(Model& model, const DataSource& data, Split split, int64_t batch,
             const BeamOptions& options, const Compute& compute) {
  const auto description = describe_data(data);
  const int64_t rank = compute.comm ? compute.comm->rank() : 0;
  const int64_t ranks = compute.comm ? compute.comm->size() : 1;
  Bleu bleu;
  int64_t n = 0;
  for_each_batch({&data, split, batch}, compute.device, [&](const Batch& sources) {
    const int64_t first = n;
    n += sources.examples();
    if (first / batch % ranks != rank) return;
    for (int64_t line = first;
         const auto& text : translate(model, sources, description.shape, options, compute))
      bleu.add(text_of(text, description), data.written(split, line++));
  });
  if (ranks > 1) sum_over_ranks(bleu, *compute.comm);
  return bleu;
}

}  // namespace headlab
