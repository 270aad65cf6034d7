#include "experiments/models/head_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>

#include "core/torch.h"

namespace headlab {
namespace {

int64_t most_heads(const std::vector<std::shared_ptr<AttentionHeads>*>& layers) {
  int64_t most = 0;
  for (auto* heads : layers) most = std::max(most, (*heads)->heads());
  return most;
}

int64_t number(const std::string& text, const std::string& word) {
  int64_t value = -1;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0)
    throw ConfigError(
        fmt::format("--heads {}: must be layer:head or layer:head,head, e.g. 1:0,3", word));
  return value;
}

}  // namespace

std::string to_text(HeadId id) { return fmt::format("{}:{}", id.layer, id.head); }

std::ostream& operator<<(std::ostream& out, HeadId id) { return out << to_text(id); }

std::vector<std::string> to_texts(const std::vector<HeadId>& ids) {
  std::vector<std::string> texts;
  for (const auto& id : ids) texts.push_back(to_text(id));
  return texts;
}

std::vector<std::shared_ptr<AttentionHeads>*> attention_layers(Model& model) {
  const auto sites = model.sites();
  if (sites.size() != 1 || !sites.count("self"))
    throw ConfigError("only models with one stack of self-attention can be looked at by head");
  return sites.at("self");
}

Tensor alive_heads(Model& model) {
  const auto layers = attention_layers(model);
  auto alive = at::zeros({std::ssize(layers), most_heads(layers)}, at::kBool);
  for (int64_t l = 0; l < std::ssize(layers); ++l) {
    const auto is_alive = (*layers[l])->alive();
    for (int64_t h = 0; h < std::ssize(is_alive); ++h) alive[l][h] = static_cast<bool>(is_alive[h]);
  }
  return alive;
}

int64_t built_heads(Model& model) {
  int64_t built = 0;
  for (auto* heads : attention_layers(model)) built += (*heads)->heads();
  return built;
}

std::vector<HeadId> heads_where(const Tensor& grid) {
  std::vector<HeadId> heads;
  for (int64_t l = 0; l < grid.size(0); ++l)
    for (int64_t h = 0; h < grid.size(1); ++h)
      if (grid[l][h].item<bool>()) heads.push_back({l, h});
  return heads;
}

std::vector<HeadId> parse_heads(const std::vector<std::string>& words, Model& model) {
  const auto layers = attention_layers(model);
  std::vector<HeadId> ids;
  for (const auto& word : words) {
    const auto colon = word.find(':');
    if (colon == std::string::npos) number("", word);
    const int64_t layer = number(word.substr(0, colon), word);
    if (layer >= std::ssize(layers))
      throw ConfigError(
          fmt::format("--heads {}: there is no layer {}; the model has layers 0 to {}", word, layer,
                      std::ssize(layers) - 1));
    std::istringstream heads(word.substr(colon + 1) + ",");
    for (std::string text; std::getline(heads, text, ',');) {
      const int64_t head = number(text, word), count = (*layers[layer])->heads();
      if (head >= count)
        throw ConfigError(
            fmt::format("--heads {}: layer {} has no head {}; it was built with heads 0 to {}",
                        word, layer, head, count - 1));
      ids.push_back({layer, head});
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void remove_heads(Model& model, const std::vector<HeadId>& heads) {
  const auto layers = attention_layers(model);
  std::vector<std::vector<int64_t>> gone(layers.size());
  for (const auto& id : heads) gone.at(id.layer).push_back(id.head);
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto is_alive = (*layers[l])->alive();
    for (int64_t h = 0; h < std::ssize(is_alive); ++h)
      if (!is_alive[h]) gone[l].push_back(h);
    (*layers[l])->mask_heads(gone[l]);
  }
}

void slice_heads(Model& model) {
  const auto layers = attention_layers(model);
  for (int64_t l = 0; l < std::ssize(layers); ++l) {
    const auto is_alive = (*layers[l])->alive();
    if (std::count(is_alive.begin(), is_alive.end(), true) < std::ssize((*layers[l])->head_ids()))
      model.exchange("self", l, (*layers[l])->slice());
  }
}

Tensor head_grid(Model& model, const std::vector<Tensor>& values) {
  const auto layers = attention_layers(model);
  auto grid = at::full({std::ssize(layers), most_heads(layers)},
                       std::numeric_limits<double>::quiet_NaN(), at::kDouble);
  for (int64_t l = 0; l < std::ssize(layers); ++l) {
    const auto ids = (*layers[l])->head_ids();
    const auto is_alive = (*layers[l])->alive();
    const auto own = values[l].to(at::kCPU, at::kDouble);
    for (int64_t n = 0; n < std::ssize(ids); ++n)
      if (is_alive[ids[n]]) grid[l][ids[n]] = own[n];
  }
  return grid;
}

}  // namespace headlab
