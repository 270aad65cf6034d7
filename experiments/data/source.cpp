#include "experiments/data/source.h"

#include <fmt/format.h>

#include <map>

#include "core/attention/random.h"
#include "core/config/registry.h"
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/data/fetched_data.h"
#include "experiments/data/test_part.h"
#include "experiments/text/with_commas.h"

namespace headlab {

namespace {

const std::map<std::string, Split> kSplits{{"train", Split::kTrain},
                                           {"val", Split::kValidation},
                                           {"test", Split::kTest},
                                           {"whole", Split::kWhole}};

Registry<DataKind>& registry() {
  static Registry<DataKind> kinds("kind of data");
  return kinds;
}

Answers answers_of_shape(const DataShape& shape) {
  const bool classes = shape.classes > 0;
  const int64_t all = classes ? shape.classes : shape.vocabulary;
  auto among = at::ones({all}, at::kBool);
  const auto leave_out = [&](const std::optional<int64_t>& id) {
    if (!classes && id && *id < all) among[*id] = false;
  };
  leave_out(shape.pad), leave_out(shape.mask);
  if (shape.start != shape.end) leave_out(shape.start);  // some models have one token for both
  if (shape.mask) leave_out(shape.end);
  const auto count = with_commas(among.sum().item<int64_t>());
  return {.among = among, .of = fmt::format("any of {} {}", count, classes ? "classes" : "tokens")};
}

}  // namespace

Split split_named(const std::string& name) {
  auto found = kSplits.find(name);
  if (found == kSplits.end())
    throw ConfigError("no split is called '" + name + "': it is train, val or test");
  return found->second;
}

const char* split_name(Split split) {
  for (const auto& [name, value] : kSplits)
    if (value == split) return name.c_str();
  TORCH_CHECK(false, "no such split: ", static_cast<int>(split));
}

std::string metric_name(Split split, const std::string& metric) {
  return std::string(split_name(split)) + "/" + metric;
}

const std::string& validation_loss_name() {
  static const auto name = metric_name(Split::kValidation, kLoss);
  return name;
}

std::vector<std::string> DataSource::token_texts() const {
  const auto known = tokenizer();
  return known ? known->token_texts() : std::vector<std::string>();
}

std::vector<uint8_t> DataSource::token_classes() const {
  const auto known = tokenizer();
  return known ? known->token_classes() : std::vector<uint8_t>();
}

Batch DataSource::train_batch(uint64_t, int64_t, int64_t, int64_t) const {
  TORCH_CHECK(false, "a source with epochs draws nothing");
}

Batch DataSource::epoch_batch(uint64_t, int64_t, int64_t) const {
  TORCH_CHECK(false, "a source without epochs has no places in them");
}

std::string DataSource::written(Split, int64_t) const {
  TORCH_CHECK(false, "a source without pairs of texts has nothing that was to be written");
}

int64_t DataSource::sized_batches(int64_t) const { return 0; }

Batch DataSource::sized_batch(uint64_t, int64_t, int64_t) const {
  TORCH_CHECK(false, "a source whose examples are all of one length has no batches by size");
}

Answers answers_of(const DataSource& data, const Batch& batch) {
  return data.answers(batch).value_or(answers_of_shape(data.shape()));
}

Tensor ids_between(int64_t first, int64_t end, int64_t vocabulary) {
  auto ids = at::zeros({vocabulary}, at::kBool);
  ids.slice(0, first, end).fill_(true);
  return ids;
}

int64_t Sample::examples() const {
  const int64_t all = data->examples(split);
  return most > 0 ? std::min(all, most * batch) : all;
}

uint64_t example_bits(uint64_t seed, int64_t step, int64_t n) {
  constexpr uint64_t kExamples = 0x6578616D706C6573;  // "examples": far from CounterRng's own
  return CounterRng{.seed = seed, .step = static_cast<uint64_t>(step)}.bits(
      kExamples, static_cast<uint64_t>(n));
}

RegisterOpening::RegisterOpening(DataKind kind) { registry().add(std::move(kind)); }
const DataKind& data_kind(const std::string& name) { return registry().at(name); }
const KindRegistry& data_registry() { return registry(); }

std::shared_ptr<DataSource> open_data(const KindBlock& block) {
  Problems problems;
  const std::string within = block.path().empty() ? "" : block.path() + ".";
  const auto complain = [&](const std::string& field, const std::string& what) {
    problems.add(block.place(field), within + field, what);
  };
  block.options().check(complain);
  problems.raise();
  require_fetched(block.write());
  auto data = data_kind(block.kind()).open(block.as<DataOptions>());
  if (const auto* options = dynamic_cast<const TestPartOption*>(&block.options()))
    data = options->test.added_to(std::move(data), complain);
  problems.raise();
  return data;
}

}  // namespace headlab
