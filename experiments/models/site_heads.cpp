#include "experiments/models/site_heads.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <sstream>
#include <tuple>

#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

Tensor nans(at::IntArrayRef sizes) { return at::full(sizes, kNone, at::kDouble); }

int64_t number(const std::string& text, const std::string& word) {
  int64_t value = -1;
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0)
    throw ConfigError(
        fmt::format("--heads {}: must be layer:head or layer:head,head, e.g. 1:0,3", word));
  return value;
}

std::vector<std::string> site_names(Model& model) {
  std::vector<std::string> names;
  for (const auto& site : model.sites()) names.push_back(site.name);
  return names;
}

// The site that a word names, and the rest of it.
std::pair<SiteHeads, std::string> site_of(const std::string& word, Model& model) {
  const auto slash = word.find('/');
  const auto names = site_names(model);
  if (slash == std::string::npos && names.size() == 1)
    return {heads_at(model, names.front()), word};
  if (slash == std::string::npos)
    throw ConfigError(fmt::format("--heads {0}: of which site? {1}/{0}, for one; the model has {2}",
                                  word, names.front(), fmt::join(names, ", ")));
  const auto name = word.substr(0, slash);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError(fmt::format("--heads {}: there is no site '{}'; the model has {}", word, name,
                                  fmt::join(names, ", ")));
  return {heads_at(model, name), word.substr(slash + 1)};
}

}  // namespace

bool operator<(const HeadId& a, const HeadId& b) {
  return std::tie(a.site, a.layer, a.head) < std::tie(b.site, b.layer, b.head);
}

std::string to_text(const HeadId& id) {
  const auto place = fmt::format("{}:{}", id.layer, id.head);
  return id.site == kSelfSite ? place : id.site + "/" + place;
}

std::ostream& operator<<(std::ostream& out, const HeadId& id) { return out << to_text(id); }

std::vector<std::string> to_texts(const std::vector<HeadId>& ids) {
  std::vector<std::string> texts;
  for (const auto& id : ids) texts.push_back(to_text(id));
  return texts;
}

std::vector<int64_t> alive_rows(const AttentionHeads& layer) {
  const auto ids = layer.head_ids();
  const auto is_alive = layer.alive();
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < std::ssize(ids); ++row)
    if (is_alive[ids[row]]) rows.push_back(row);
  return rows;
}

SiteHeads::SiteHeads(Site site) : site_(std::move(site)) {
  for (auto* heads : site_.layers) heads_ = std::max(heads_, (*heads)->heads());
}

int64_t SiteHeads::built() const {
  int64_t built = 0;
  for (auto* heads : site_.layers) built += (*heads)->heads();
  return built;
}

Tensor SiteHeads::alive() const {
  auto alive = at::zeros({layers(), heads_}, at::kBool);
  for (int64_t l = 0; l < layers(); ++l) {
    const auto is_alive = layer(l).alive();
    for (int64_t h = 0; h < std::ssize(is_alive); ++h) alive[l][h] = static_cast<bool>(is_alive[h]);
  }
  return alive;
}

Tensor SiteHeads::no_values() const { return nans({layers(), heads_}); }

std::vector<int64_t> SiteHeads::alive_counts() const {
  std::vector<int64_t> counts;
  for (int64_t l = 0; l < layers(); ++l) counts.push_back(std::ssize(alive_rows(layer(l))));
  return counts;
}

Tensor SiteHeads::alive_places() const { return alive().flatten().nonzero().squeeze(1); }

Tensor SiteHeads::by_head(const std::vector<Tensor>& values) const {
  std::vector<Tensor> columns;
  for (const auto& v : values) columns.push_back(v.defined() ? v.unsqueeze(1) : v);
  return rows_by_head(columns).squeeze(2);
}

Tensor SiteHeads::by_own_head(const std::vector<Tensor>& values) const {
  std::vector<Tensor> of_alive;
  for (int64_t l = 0; l < layers(); ++l) {
    const auto rows = at::tensor(alive_rows(layer(l)), at::kLong);
    of_alive.push_back(values[l].defined()
                           ? values[l].to(at::kCPU, at::kDouble).index_select(0, rows)
                           : values[l]);
  }
  return by_head(of_alive);
}

Tensor SiteHeads::rows_by_head(const std::vector<Tensor>& values) const {
  int64_t width = 1;
  for (const auto& v : values)
    if (v.defined()) width = std::max(width, v.size(1));
  const auto counts = alive_counts();
  const auto places = alive_places();
  auto all = nans({places.size(0), width});
  int64_t first = 0;
  for (int64_t l = 0; l < layers(); first += counts[l++])
    if (values[l].defined())
      all.narrow(0, first, counts[l]).narrow(1, 0, values[l].size(1)).copy_(values[l]);
  return nans({layers() * heads_, width})
      .index_copy(0, places, all)
      .view({layers(), heads_, width});
}

Tensor SiteHeads::within_layers(const std::vector<Tensor>& values) const {
  const auto counts = alive_counts();
  const int64_t alive = alive_places().size(0);
  auto all = nans({alive, alive});
  int64_t first = 0;
  for (int64_t l = 0; l < layers(); first += counts[l++])
    if (values[l].defined())
      all.narrow(0, first, counts[l]).narrow(1, first, counts[l]).copy_(values[l]);
  return between_layers(all).diagonal(0, 0, 2).permute({2, 0, 1});
}

Tensor SiteHeads::between_layers(const Tensor& values) const {
  const int64_t n = layers() * heads_;
  const auto places = alive_places();
  const auto rows = nans({n, places.size(0)}).index_copy(0, places, values);
  return nans({n, n}).index_copy(1, places, rows).view({layers(), heads_, layers(), heads_});
}

std::vector<SiteHeads> site_heads(Model& model) {
  std::vector<SiteHeads> all;
  for (auto& site : model.sites()) all.emplace_back(std::move(site));
  return all;
}

SiteHeads heads_at(Model& model, const std::string& site) {
  for (auto& has : model.sites())
    if (has.name == site) return SiteHeads(std::move(has));
  throw ConfigError(
      fmt::format("the model has no site '{}', only {}", site, fmt::join(site_names(model), ", ")));
}

SiteGrids alive_heads(Model& model) {
  SiteGrids alive;
  for (const auto& site : site_heads(model)) alive[site.name()] = site.alive();
  return alive;
}

int64_t built_heads(Model& model) {
  int64_t built = 0;
  for (const auto& site : site_heads(model)) built += site.built();
  return built;
}

int64_t alive_count(Model& model) { return std::ssize(heads_where(alive_heads(model))); }

std::vector<HeadId> heads_where(const SiteGrids& grids) {
  std::vector<HeadId> heads;
  for (const auto& [site, grid] : grids) {
    const auto places = grid.nonzero();  // [n,2]
    for (int64_t n = 0; n < places.size(0); ++n)
      heads.push_back({places[n][0].item<int64_t>(), places[n][1].item<int64_t>(), site});
  }
  return heads;
}

std::vector<HeadId> parse_heads(const std::vector<std::string>& words, Model& model) {
  std::vector<HeadId> ids;
  for (const auto& word : words) {
    const auto [site, place] = site_of(word, model);
    const auto colon = place.find(':');
    if (colon == std::string::npos) number("", word);
    const int64_t layer = number(place.substr(0, colon), word);
    if (layer >= site.layers())
      throw ConfigError(
          fmt::format("--heads {}: there is no layer {}; the model has layers 0 to {}", word, layer,
                      site.layers() - 1));
    std::istringstream heads(place.substr(colon + 1) + ",");
    for (std::string text; std::getline(heads, text, ',');) {
      const int64_t head = number(text, word), count = site.layer(layer).heads();
      if (head >= count)
        throw ConfigError(
            fmt::format("--heads {}: layer {} has no head {}; it was built with heads 0 to {}",
                        word, layer, head, count - 1));
      ids.push_back({layer, head, site.name()});
    }
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void remove_heads(Model& model, const std::vector<HeadId>& heads) {
  std::map<std::pair<std::string, int64_t>, std::vector<int64_t>> gone;
  for (const auto& id : heads) gone[{id.site, id.layer}].push_back(id.head);
  for (const auto& site : site_heads(model))
    for (int64_t l = 0; l < site.layers(); ++l) {
      auto& of_layer = gone[{site.name(), l}];
      const auto is_alive = site.layer(l).alive();
      for (int64_t h = 0; h < std::ssize(is_alive); ++h)
        if (!is_alive[h]) of_layer.push_back(h);
      site.layer(l).mask_heads(of_layer);
    }
}

void slice_heads(Model& model) {
  for (const auto& site : site_heads(model))
    for (int64_t l = 0; l < site.layers(); ++l) {
      const auto& layer = site.layer(l);
      if (std::ssize(alive_rows(layer)) < std::ssize(layer.head_ids()))
        model.exchange(site.name(), l, layer.slice());
    }
}

}  // namespace headlab
