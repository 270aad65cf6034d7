#include "experiments/inference/leak_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/stack_options.h"

namespace headlab {
namespace {

constexpr int64_t kExamples = 3, kLongest = 512;
// A key's other state is so much larger than the states around it, so that a small weight shows.
constexpr double kOtherState = 30;
// What is no leak: so much of the largest output, in units of its type's precision, for each layer
// passed through. Most kinds move by no bit; rows that are summed together, as those that moh
// packs, round otherwise when there are more or fewer of them (by 0.5, measured at widths of 128
// and 256 and 64 to 512 tokens; 1.3 a layer in the logits).
constexpr double kRounding = 32;

// Puts back what passes through a model, and drawn weights, may have changed. Holds the weights a
// second time, which is less than training will.
class Untouched {
 public:
  explicit Untouched(Model& model) : modules_(model.modules()) {
    for (const auto& module : modules_) training_.push_back(module->is_training());
    for (const auto& tensors : {model.parameters(), model.buffers()})
      for (const auto& t : tensors) kept_.emplace_back(t, t.detach().clone());
    keep_draws(at::kCPU);
    if (const auto& device = kept_.front().first.device(); device.is_cuda()) keep_draws(device);
  }
  ~Untouched() {
    at::NoGradGuard no_grad;
    for (auto& [t, copy] : kept_)
      if (!at::equal(t, copy)) t.copy_(copy);
    // Parents come first: what they say to their children is what these say last.
    for (size_t n = 0; n < modules_.size(); ++n) modules_[n]->train(training_[n]);
    for (auto& [generator, state] : draws_) generator.set_state(state);
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  void keep_draws(const at::Device& device) {
    const auto& generator = at::globalContext().defaultGenerator(device);
    draws_.emplace_back(generator, generator.get_state());
  }

  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> training_;
  std::vector<std::pair<Tensor, Tensor>> kept_;
  std::vector<std::pair<at::Generator, Tensor>> draws_;
};

// The row that moved most of those that must not.
struct Leak {
  int64_t example = 0, row = 0;
  double moved = 0, largest = 0;  // and the largest output of these rows

  // Also where it is no number.
  bool is_one(double rounding) const { return !(moved <= rounding * largest); }
};

// y of the same rows before and after, [B,T,n]; `hidden` bool [B,T]: the rows that must not move.
Leak worst_leak(const Tensor& before, const Tensor& after, const Tensor& hidden) {
  const auto same = (before == after) | (before.isnan() & after.isnan());
  const auto moved = (before - after).abs().masked_fill(same, 0).amax(-1);  // [B,T]
  const auto of_hidden = moved.masked_fill(hidden.logical_not(), 0).cpu();
  const auto largest = before.abs().nan_to_num().amax(-1).masked_fill(hidden.logical_not(), 0);
  const int64_t worst = of_hidden.argmax().item<int64_t>(), T = hidden.size(1);
  return {.example = worst / T,
          .row = worst % T,
          .moved = of_hidden.flatten()[worst].item<double>(),
          .largest = largest.max().item<double>()};
}

double rounding_of(const Tensor& y, int64_t layers) {
  return kRounding * static_cast<double>(layers) *
         (y.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                         : std::numeric_limits<float>::epsilon());
}

class LeakCheck {
 public:
  LeakCheck(Model& model, const ModelOptions& options, const DataShape& data,
            const Compute& compute)
      : model_(model), options_(options), data_(data), compute_(compute), sites_(model.sites()) {}

  void run() {
    model_.eval();
    open_paths();
    for (const bool padded : {false, true}) {
      const auto batch = draw_batch(padded).to(compute_.device);
      const auto logits = check_layers(batch);
      if (!padded && last_token_is_hidden_ && !model_.sees_whole_example())
        check_model(batch, logits);
    }
  }

 private:
  Tensor draw(at::IntArrayRef sizes, const Tensor& like) {
    return at::randn(sizes, generator_, at::kFloat).to(like.options());
  }
  Tensor draw_tokens(int64_t vocabulary, int64_t context) {
    const int64_t T = std::min(context, kLongest);
    return vocabulary > 0 && T > 0
               ? at::randint(vocabulary, {kExamples, T}, generator_, at::TensorOptions(at::kLong))
               : Tensor();
  }

  // A path that begins at 0, as some kinds begin, hides what will go through it.
  void open_paths() {
    for (auto& p : model_.parameters()) {
      const auto shut = p == 0;
      if (shut.any().item<bool>()) p.copy_(at::where(shut, 0.02 * draw(p.sizes(), p), p));
    }
  }

  Batch draw_batch(bool padded) {
    Batch batch{.ids = draw_tokens(data_.vocabulary, data_.context),
                .source = draw_tokens(data_.source_vocabulary, data_.source_context)};
    if (data_.channels > 0)
      batch.image =
          at::randn({kExamples, data_.channels, data_.height, data_.width}, generator_, at::kFloat);
    if (padded) {
      batch.length = shorter(batch.ids);
      batch.source_length = shorter(batch.source);
    }
    return batch;
  }

  // Lengths of tokens [B,T], all shorter than T and different where there is room: [B].
  static Tensor shorter(const Tensor& tokens) {
    if (!tokens.defined()) return {};
    const int64_t T = tokens.size(1);
    auto lengths = at::empty({kExamples}, at::kLong);
    for (int64_t b = 0; b < kExamples; ++b)
      lengths[b] = std::max<int64_t>(1, T - 1 - b * (T - 1) / kExamples);
    return lengths;
  }

  // The model gives its layers their calls, and each is tried with its own before it is used.
  Tensor check_layers(const Batch& batch) {
    HiddenStates states;
    ModelContext context{.backend = compute_.backend, .hidden = &states};
    context.edit_heads = [&](const std::string& name, int64_t layer, const HeadContext& heads) {
      const auto site = std::ranges::find(sites_, name, &Site::name);
      if (site->within_ids()) last_token_is_hidden_ &= heads.mask.causal;
      const auto& state = states.at(site->stack).back();  // [B,T,D]
      check_layer(*site, layer, draw(state.sizes(), state), heads);
    };
    return model_.forward(batch, context).logits;
  }

  void check_layer(const Site& site, int64_t layer, const Tensor& x, HeadContext context);
  // The logits [B,T,V] of the batch against those with other last tokens.
  Leak last_token_leak(const Batch& batch, const Tensor& logits);
  void check_model(const Batch& batch, const Tensor& logits);
  Tensor forward(const Batch& batch) {
    return model_.forward(batch, {.backend = compute_.backend}).logits;
  }

  Model& model_;
  const ModelOptions& options_;
  const DataShape& data_;
  Compute compute_;
  std::vector<Site> sites_;
  at::Generator generator_ = CounterRng{.seed = 0}.generator(CounterRng::kRows, at::kCPU);
  bool last_token_is_hidden_ = true;  // from those before it, in all layers
};

// One key of each example [B]: in turn the first and the last that is padded, otherwise from the
// first to the last of all S.
Tensor keys_to_change(const Tensor& key_length, int64_t B, int64_t S) {
  auto keys = at::empty({B}, at::kLong);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = key_length.defined() ? key_length[b].item<int64_t>() : S;
    keys[b] = length == S ? b * (S - 1) / std::max<int64_t>(1, B - 1) : b % 2 == 0 ? length : S - 1;
  }
  return keys;
}

// The rows that must not see the key of their example: bool [B,T]; undefined: none.
Tensor rows_hidden_from(const Tensor& keys, bool of_memory, const AttentionMask& mask, int64_t T,
                        int64_t S) {
  const auto device = keys.device();
  auto allowed = allowed_keys(mask, T, S, device);
  if (!allowed.defined()) return {};
  while (allowed.dim() < 4) allowed = allowed.unsqueeze(0);
  const int64_t B = keys.size(0);
  auto hidden = allowed.any(1).expand({B, T, S}).gather(2, keys.view({B, 1, 1}).expand({B, T, 1}));
  hidden = hidden.squeeze(2).logical_not();
  if (const auto rows = within_length(mask.query_length, T, device); rows.defined())
    hidden = hidden & rows;
  // In self-attention the key's own row asks otherwise.
  return of_memory ? hidden : hidden.scatter(1, keys.view({B, 1}), false);
}

std::string why_hidden(const AttentionMask& mask, int64_t example, int64_t row, int64_t key) {
  if (mask.key_length.defined() && key >= mask.key_length[example].item<int64_t>())
    return "which is padding";
  if (mask.causal && key > row) return "which comes later";
  if (mask.window > 0) return fmt::format("which is outside the window of {}", mask.window);
  return "which its mask hides";
}

void LeakCheck::check_layer(const Site& site, int64_t layer, const Tensor& x, HeadContext context) {
  const bool cross = context.memory.defined();
  auto& heads = **site.layers.at(layer);
  if (cross) context.memory = draw(context.memory.sizes(), x);
  const auto& read = cross ? context.memory : x;  // [B,S,D]
  const int64_t B = x.size(0), T = x.size(1), S = read.size(1);
  if (context.mask.window >= T) context.mask.window = T / 2;
  const auto keys = keys_to_change(context.mask.key_length, B, S).to(x.device());
  auto reach = context.mask;
  if (reach.window > 0) reach.window += heads.traits().rows_before;
  const auto hidden = rows_hidden_from(keys, cross, reach, T, S);
  if (!hidden.defined()) return;

  const auto before = heads.forward(x, context).y;
  const auto at = keys.view({B, 1, 1}).expand({B, 1, read.size(2)});
  const auto changed = read.scatter(1, at, kOtherState * draw({B, 1, read.size(2)}, x));
  if (cross) context.memory = changed;
  const auto after = heads.forward(cross ? x : changed, context).y;

  const auto leak = worst_leak(before, after, hidden);
  const auto key = keys[leak.example].item<int64_t>();
  if (!leak.is_one(rounding_of(before, 1))) return;
  throw LeakError(fmt::format(
      "attention kind '{}' leaks: in layer {} of '{}' the output at position {} moves by {:.3g} "
      "(outputs are up to {:.3g}) when the state at position {} changes, {}; what a call's mask "
      "hides must have no weight, as attend() and masked_softmax() see to",
      kind_of_heads(options_, site.name, layer), layer, site.name, leak.row, leak.moved,
      leak.largest, key, why_hidden(context.mask, leak.example, leak.row, key)));
}

Leak LeakCheck::last_token_leak(const Batch& batch, const Tensor& logits) {
  const int64_t T = batch.ids.size(1);
  auto other = batch;
  other.ids = batch.ids.clone();
  auto last = other.ids.select(1, T - 1);
  last.copy_((last + 1).remainder(data_.vocabulary));
  auto hidden = at::ones({kExamples, T}, batch.ids.options().dtype(at::kBool));
  hidden.select(1, T - 1).fill_(false);
  return worst_leak(logits, forward(other), hidden);
}

void LeakCheck::check_model(const Batch& batch, const Tensor& logits) {
  if (!batch.ids.defined() || logits.dim() != 3 || logits.size(1) != batch.ids.size(1)) return;
  const double rounding = rounding_of(logits, std::ssize(all_heads(model_)));
  auto leak = last_token_leak(batch, logits);
  if (!leak.is_one(rounding)) return;
  // Rounding may, once in a long while, have turned a choice between heads that are nearly level.
  const auto again = draw_batch(/*padded=*/false).to(compute_.device);
  leak = last_token_leak(again, forward(again));
  if (!leak.is_one(rounding)) return;
  throw LeakError(
      fmt::format("the model leaks, though none of its attention layers does: the logits at "
                  "position {} move by "
                  "{:.3g} (they are up to {:.3g}) when the last token changes, at position {}",
                  leak.row, leak.moved, leak.largest, batch.ids.size(1) - 1));
}

}  // namespace

void check_leaks(Model& model, const ModelOptions& options, const DataShape& data,
                 const Compute& compute) {
  at::NoGradGuard no_grad;
  const Untouched untouched(model);
  LeakCheck(model, options, data, compute).run();
}

}  // namespace headlab
