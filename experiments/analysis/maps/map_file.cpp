#include "experiments/analysis/maps/map_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/analysis/maps/single_threaded.h"
#include "experiments/files/json_text.h"
#include "experiments/logs/log_schema.h"

namespace headlab {
namespace {

// The parts of a file, checked one by one.
struct Reader {
  const std::string& name;
  const NamedTensors& tensors;
  const std::map<std::string, std::string>& metadata;

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(fmt::format("{}: {}", name, what));
  }

  Tensor maps() const {
    const auto found = tensors.find("in.attention");
    if (found == tensors.end())
      refuse("holds no attention maps: in.attention [layer,example,head,query,key] is missing");
    const auto& a = found->second;
    if (a.dim() != 5 || !at::isFloatingType(a.scalar_type()) || a.numel() == 0)
      refuse(fmt::format("in.attention must be floating [layer,example,head,query,key], is {}",
                         shape_of(a)));
    return a;
  }

  // Integers of this shape, or undefined.
  Tensor integers(const char* tensor, at::IntArrayRef shape, at::ScalarType type) const {
    const auto found = tensors.find(tensor);
    if (found == tensors.end()) return {};
    const auto& t = found->second;
    if (t.sizes() != shape || !at::isIntegralType(t.scalar_type(), /*includeBool=*/false))
      refuse(fmt::format("{} must be integers [{}], is {}", tensor, fmt::join(shape, ","),
                         shape_of(t)));
    return t.to(type);
  }

  Tensor lengths(const char* tensor, int64_t examples, int64_t most) const {
    const auto length = integers(tensor, {examples}, at::kLong);
    if (length.defined() &&
        (length.min().item<int64_t>() < 0 || length.max().item<int64_t>() > most))
      refuse(fmt::format("{} must lie in 0 .. {}", tensor, most));
    return length;
  }

  // Metadata as JSON; null where it is missing.
  nlohmann::json setting(const std::string& key) const {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return {};
    return parse_json<nlohmann::json>(found->second).value_or(nlohmann::json::value_t::discarded);
  }
  int64_t count(const std::string& key, int64_t otherwise, int64_t least) const {
    const auto value = setting(key);
    if (value.is_null()) return otherwise;
    if (!value.is_number_integer() || value.get<int64_t>() < least)
      refuse(fmt::format("metadata {}: must be an integer of at least {}", key, least));
    return value.get<int64_t>();
  }
  std::optional<bool> truth(const std::string& key) const {
    const auto value = setting(key);
    if (value.is_null()) return std::nullopt;
    if (!value.is_boolean()) refuse(fmt::format("metadata {}: must be true or false", key));
    return value == true;
  }
  std::optional<ImageGrid> grid(int64_t tokens) const {
    const auto sides = setting("grid"), patch = setting("patch");
    if (sides.is_null()) return std::nullopt;
    ImageGrid grid;
    const bool pair = sides.is_array() && sides.size() == 2 && sides[0].is_number_integer() &&
                      sides[1].is_number_integer();
    if (!pair || sides[0] < 1 || sides[1] < 1) refuse("metadata grid: must be [rows, columns]");
    grid.rows = sides[0].get<int64_t>(), grid.columns = sides[1].get<int64_t>();
    grid.cls_tokens = count("cls_tokens", 0, 0);
    if (!patch.is_null() && !(patch.is_number() && patch > 0))
      refuse("metadata patch: must be a number above 0");
    if (patch.is_number()) grid.patch = patch.get<double>();
    if (grid.cls_tokens + grid.rows * grid.columns != tokens)
      refuse(fmt::format("a grid of {} x {} patches and {} cls tokens is not {} tokens", grid.rows,
                         grid.columns, grid.cls_tokens, tokens));
    return grid;
  }

  static std::string shape_of(const Tensor& t) {
    return fmt::format("{} [{}]", c10::toString(t.scalar_type()), fmt::join(t.sizes(), ","));
  }
};

// What weights were rounded to before the file had them: tools keep them in 16 bits and hand them
// out in 32 or 64. Each holds while all weights are numbers of that type.
struct StoredType {
  bool packed = true;  // to kPackedOne parts, as in headlab's logs
  bool half = true, bfloat = true, single = true;

  void look_at(const Tensor& a) {
    const auto holds = [&](const Tensor& rounded) {
      return ((rounded.to(a.scalar_type()) == a) | a.isnan()).all().item<bool>();
    };
    half = half && holds(a.to(at::kHalf));
    bfloat = bfloat && holds(a.to(at::kBFloat16));
    single = single && holds(a.to(at::kFloat));
    const auto parts = a.to(at::kDouble) * kPackedOne;
    constexpr double kSingle = kPackedOne / (1 << 23);  // what a part loses as a float
    packed =
        packed && (((parts - parts.round()).abs() <= kSingle) | parts.isnan()).all().item<bool>();
  }
  // How far the weights of a row of `keys` may be from 1 in sum.
  double slack(int64_t keys) const {
    if (half || bfloat) return 2e-2;
    constexpr double kOfFloats = 1e-4;  // also before they were packed
    if (packed) return kOfFloats + 0.5 / kPackedOne * static_cast<double>(keys);
    return single ? kOfFloats : 1e-6;
  }
};

StoredType stored_type(const std::vector<LayerMap>& layers) {
  StoredType type;
  for (const auto& map : layers)
    for (int64_t b = 0; b < map.a.size(0); ++b) type.look_at(example_of(map, b).a);
  return type;
}

// Whether no query attends to a later key, where there are any.
bool upper_triangle_empty(const std::vector<LayerMap>& layers) {
  bool any = false;
  for (const auto& map : layers)
    for (int64_t b = 0; b < map.a.size(0); ++b) {
      const auto a = example_of(map, b).a;
      if (a.triu(1).count_nonzero().item<int64_t>() > 0) return false;
      any = any || a.size(-1) > 1;
    }
  return any;
}

// The first row of layer `l` that is none.
void check_rows(const Reader& file, const LayerMap& map, int64_t l, const StoredType& type) {
  const double tolerance = type.slack(map.a.size(-1));
  for (int64_t b = 0; b < map.a.size(0); ++b) {
    const auto one = example_of(map, b);
    if (one.a.numel() == 0) continue;
    const auto rows = pattern_rows(one.a, one.context);
    const auto sum = rows.a.sum(-1), least = rows.a.amin(-1);  // [1,H,T]
    const auto fine = ((sum - 1).abs() <= tolerance) & (least >= -tolerance);
    const auto wrong = (rows.counted & fine.logical_not()).nonzero();
    if (wrong.size(0) == 0) continue;
    const auto h = wrong[0][1].item<int64_t>(), i = wrong[0][2].item<int64_t>();
    const auto place =
        fmt::format("in.attention, layer {}, example {}, head {}, query {}: ", l, b, h, i);
    if (least[0][h][i].item<double>() < -tolerance)
      file.refuse(fmt::format("{}a weight is {:.4g}; attention weights are not negative", place,
                              least[0][h][i].item<double>()));
    file.refuse(
        fmt::format("{}the weights of the {} keys that it may attend to{} sum to {:.4g}, not 1",
                    place, rows.keys[0][h][i].item<double>(),
                    map.context.causal ? " (causal; --causal no says otherwise)" : "",
                    sum[0][h][i].item<double>()));
  }
}

// Whether the context holds what a statistic of the streamed table needs.
bool streams(const Statistic& s, const MapContext& f) {
  if (s.per != Per::kHead || (s.needs_places && f.cross)) return false;
  switch (s.needs) {
    case Needs::kNothing:
      return true;
    case Needs::kTokens:
      return f.tokens.defined();
    case Needs::kClasses:
      return f.classes.defined();
    case Needs::kScores:
      return f.scores.defined();
    case Needs::kValues:
      return f.value_norm.defined();
    case Needs::kOutputs:
      return f.output.defined();
  }
  return false;
}

// Of each layer, the sums of what streams.
std::vector<HeadSums> streamed(const MapFile& file) {
  std::vector<HeadSums> total;
  for (const auto& map : file.layers) {
    total.emplace_back(file.heads);
    std::vector<HeadSums> of_example(map.a.size(0));
    for_each_single_threaded(map.a.size(0), [&](int64_t b) {
      auto example = example_of(map, b);
      example.context.divergence = false;
      of_example[b] = HeadSums(file.heads);
      if (example.a.numel() > 0) add_patterns(of_example[b], example.a, example.context);
    });
    for (const auto& sums : of_example) add_sums(total.back(), sums);
  }
  return total;
}

}  // namespace

MapFile::MapFile(const std::string& name, const NamedTensors& tensors,
                 const std::map<std::string, std::string>& metadata, std::optional<bool> causal) {
  const Reader file{name, tensors, metadata};
  const auto maps = file.maps();
  const int64_t B = maps.size(1), T = maps.size(3), S = maps.size(4);
  heads = maps.size(2), examples = B;
  top_k = file.count("top_k", 5, 1);
  MapContext context;
  context.query_length = file.lengths("in.length", B, T);
  context.key_length = file.lengths("in.key_length", B, S);
  context.cross = context.key_length.defined() || S != T;
  if (!context.cross) context.key_length = context.query_length;
  const auto said = file.truth("causal");
  causal_from = causal ? "option" : said ? "metadata" : "weights";
  if (!causal) causal = said;
  if (causal.value_or(false) && context.cross)
    file.refuse("causal: the keys are another sequence, which has no earlier places");
  context.tokens = file.integers("in.tokens", {B, S}, at::kLong);
  context.classes = file.integers("in.class", {B, S}, at::kByte);
  context.frequency_rank = file.integers("in.frequency_rank", {B, S}, at::kLong);
  if (!context.cross) context.grid = file.grid(T);
  std::vector<int64_t> all(heads);
  std::iota(all.begin(), all.end(), int64_t{0});
  for (int64_t l = 0; l < maps.size(0); ++l)
    layers.push_back({.a = maps[l], .heads = all, .context = context});
  const bool is_causal = causal ? *causal : !context.cross && upper_triangle_empty(layers);
  for (auto& map : layers) map.context.causal = is_causal;
  const auto type = stored_type(layers);
  for (int64_t l = 0; l < std::ssize(layers); ++l) check_rows(file, layers[l], l, type);
}

std::vector<std::string> MapFile::statistics() const {
  std::vector<std::string> names;
  for (const auto& s : statistic_table())
    if (streams(s, context())) names.push_back(s.name);
  for (const auto& s : map_statistic_table())
    if (s.exists(context())) names.push_back(s.name);
  return names;
}

std::map<std::string, std::vector<double>> MapFile::values(
    const MapStatisticsOptions& options) const {
  const auto wanted = [&](const char* name) {
    return std::ranges::find(options.names, name) != options.names.end();
  };
  MapStatisticsOptions of_map = options;
  of_map.names.clear();
  for (const auto& s : map_statistic_table())
    if (wanted(s.name) && s.exists(context())) of_map.names.push_back(s.name);
  MapStatistics statistics(std::ssize(layers), heads, of_map);
  if (!of_map.names.empty()) statistics.add(layers);
  auto values = statistics.values();
  std::vector<std::string> others;
  for (const auto& s : statistic_table())
    if (wanted(s.name) && streams(s, context())) others.push_back(s.name);
  if (others.empty()) return values;
  for (const auto& sums : streamed(*this)) {
    const auto of_layer = head_values(sums);
    for (const auto& name : others)
      values[name].insert(values[name].end(), of_layer.at(name).begin(), of_layer.at(name).end());
  }
  return values;
}

}  // namespace headlab
