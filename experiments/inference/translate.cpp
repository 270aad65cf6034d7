#include "experiments/inference/translate.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/torch.h"
#include "experiments/models/finite_weights.h"

namespace headlab {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// What is alive and what is finished of one source.
class Beam {
 public:
  Beam(const BeamOptions& options, int64_t start, int64_t end)
      : options_(options), end_(end), alive_{{{start}, 0}} {}

  bool done() const { return alive_.empty(); }
  const std::vector<Translated>& alive() const { return alive_; }  // scores are sums here

  // Of the live text that each new one goes on from. `candidates`: (sum, live text, id), best
  // first.
  struct Candidate {
    double sum = 0;
    int64_t from = 0, id = 0;
  };
  std::vector<int64_t> step(const std::vector<Candidate>& candidates) {
    std::vector<Translated> next;
    std::vector<int64_t> from;
    const int64_t length = std::ssize(alive_.front().ids) + 1;
    for (int64_t rank = 0; rank < std::ssize(candidates); ++rank) {
      const auto& c = candidates[rank];
      if (c.sum == kNever) break;
      const bool ends = c.id == end_ || length >= options_.max_length;
      if (ends && rank >= options_.width) continue;
      if (!ends && std::ssize(next) == options_.width) continue;
      auto text = alive_[c.from];
      text.ids.push_back(c.id), text.score = c.sum;
      if (ends) {
        finish(std::move(text));
      } else {
        next.push_back(std::move(text));
        from.push_back(c.from);
      }
    }
    alive_ = std::move(next);
    if (over(length)) alive_.clear();
    return from;
  }

  Translated best() const {
    auto text = finished_.front();
    text.ids.erase(text.ids.begin());  // the start
    return text;
  }

 private:
  double ranked(double sum, int64_t length) const {
    return sum / std::pow(static_cast<double>(length - 1), options_.power);
  }
  void finish(Translated text) {
    text.score = ranked(text.score, std::ssize(text.ids));
    const auto behind = std::ranges::find_if(
        finished_, [&](const auto& other) { return other.score < text.score; });
    finished_.insert(behind, std::move(text));
    if (std::ssize(finished_) > options_.width) finished_.pop_back();
  }
  bool over(int64_t length) const {
    if (alive_.empty() || length >= options_.max_length) return true;
    return std::ssize(finished_) == options_.width &&
           ranked(alive_.front().score, length) <= finished_.back().score;
  }

  const BeamOptions& options_;
  int64_t end_;
  std::vector<Translated> alive_, finished_;  // best first
};

class BeamSearch {
 public:
  BeamSearch(Model& model, const Batch& sources, const DataShape& shape, const BeamOptions& options,
             const Compute& compute)
      : model_(model), shape_(shape), options_(options), compute_(compute) {
    TORCH_CHECK(shape.start && shape.end && shape.pad,
                "translation needs the ids of start, end and padding");
    TORCH_CHECK(options.width >= 1, "a beam of width ", options.width);
    if (options.width > shape.vocabulary)
      throw ConfigError(fmt::format("--beam: {} is more than the {} tokens that there are",
                                    options.width, shape.vocabulary));
    if (options_.max_length <= 0) options_.max_length = model.context();
    options_.max_length = std::min(options_.max_length, model.context());
    // What else a batch holds is about texts that are there already.
    batch_ =
        Batch{.source = sources.source, .source_length = sources.source_length}.to(compute.device);
    const int64_t N = batch_.source.size(0);
    for (int64_t n = 0; n < N; ++n) {
      beams_.emplace_back(options_, *shape.start, *shape.end);
      rows_.push_back({n, 0});
    }
  }

  std::vector<Translated> run() {
    read();
    while (!rows_.empty()) step();
    std::vector<Translated> best;
    for (const auto& beam : beams_) best.push_back(beam.best());
    return best;
  }

 private:
  struct Row {
    int64_t source = 0, alive = 0;  // whose, and which of its live texts
  };

  // The encoder's states are kept, so that it reads each source once.
  void read() {
    batch_.ids = at::full({batch_.source.size(0), 1}, *shape_.start, batch_.source.options());
    ModelContext ctx{.backend = compute_.backend};
    ctx.hidden = &known_;
    model_.forward(batch_, ctx);
    const auto sites = model_.sites();
    const auto& writes = sites.back().stack;
    for (auto& [stack, states] : known_)
      if (stack != writes) first_block_[stack] = std::ssize(states) - 1;
    known_.erase(writes);
  }

  // ln p of what may come next, [rows,V], pad never.
  Tensor next() {
    std::vector<Tensor> ids;
    const bool fresh_only = options_.cache && !caches_.empty();
    for (const auto& row : rows_) {
      const auto& text = beams_[row.source].alive()[row.alive].ids;
      ids.push_back(fresh_only ? at::tensor({text.back()}, at::kLong)
                               : at::tensor(text, at::kLong));
    }
    batch_.ids = at::stack(ids).to(compute_.device);  // all live texts are of one length
    ModelContext ctx{.backend = compute_.backend};
    ctx.known = &known_, ctx.first_block = first_block_;
    if (options_.cache) ctx.caches = &caches_;
    const auto logits = model_.forward(batch_, ctx).logits.select(1, -1);  // [rows,V]
    if (!std::isfinite(logits.max().item<double>()))  // NaN, where there is any
      throw NotFiniteError("translation: the model's predictions are not finite");
    auto ln_p = at::log_softmax(logits.to(at::kDouble), -1);
    ln_p.select(1, *shape_.pad).fill_(kNever);
    return ln_p.cpu();
  }

  void step() {
    const auto ln_p = next();
    // Of each live text the best that it could give.
    const int64_t most = std::min<int64_t>(2 * options_.width, ln_p.size(1));
    const auto [values, ids] = ln_p.topk(most, 1);
    const auto value = values.accessor<double, 2>();
    const auto id = ids.accessor<int64_t, 2>();
    std::vector<Row> kept;
    std::vector<int64_t> from;
    for (size_t row = 0; row < rows_.size();) {
      const auto source = rows_[row].source;
      auto& beam = beams_[source];
      std::vector<Beam::Candidate> candidates;
      const size_t first = row;
      for (; row < rows_.size() && rows_[row].source == source; ++row) {
        const auto place = static_cast<int64_t>(row);
        for (int64_t k = 0; k < most; ++k)
          candidates.push_back({beam.alive()[rows_[row].alive].score + value[place][k],
                                rows_[row].alive, id[place][k]});
      }
      std::ranges::stable_sort(candidates, std::greater(), &Beam::Candidate::sum);
      candidates.resize(std::min<size_t>(candidates.size(), 2 * options_.width));
      const auto goes_on_from = beam.step(candidates);
      if (beam.done()) continue;
      for (int64_t n = 0; n < std::ssize(goes_on_from); ++n) {
        kept.push_back({source, n});
        from.push_back(static_cast<int64_t>(first) + goes_on_from[n]);
      }
    }
    rows_ = std::move(kept);
    if (!rows_.empty()) select(at::tensor(from, at::kLong).to(compute_.device));
  }

  // Rows of everything that is kept of them.
  void select(const Tensor& from) {
    if (from.size(0) == batch_.source.size(0) &&
        at::equal(from, at::arange(from.size(0), from.options())))
      return;
    batch_.source = batch_.source.index_select(0, from);
    if (batch_.source_length.defined())
      batch_.source_length = batch_.source_length.index_select(0, from);
    for (auto& [stack, states] : known_) states.back() = states.back().index_select(0, from);
    for (auto& cache : caches_) cache.select(from);
  }

  Model& model_;
  const DataShape& shape_;
  BeamOptions options_;
  Compute compute_;
  Batch batch_;
  HiddenStates known_;
  std::map<std::string, int64_t> first_block_;
  std::vector<LayerCache> caches_;
  std::vector<Beam> beams_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<Translated> translate(Model& model, const Batch& sources, const DataShape& shape,
                                  const BeamOptions& options, const Compute& compute) {
  torch::InferenceMode inference;
  const bool was_training = model.is_training();
  model.eval();
  auto best = BeamSearch(model, sources, shape, options, compute).run();
  model.train(was_training);
  return best;
}

}  // namespace headlab
