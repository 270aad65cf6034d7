// How layers begin: as the kind's authors do, or as plain heads do in the same model.
#include <algorithm>
#include <cmath>

#include "tests/laws_testing.h"
#include "tests/layers_testing.h"

namespace headlab::test_initialisation_laws {
using namespace testing;

namespace {

// So wide that what is drawn shows its deviation.
HeadShape wide_shape() {
  HeadShape s;
  s.d_model = 96, s.heads = 8, s.head_dim = 12, s.kv_heads = 8;
  s.layer = 1, s.layers = 3, s.context = 64;
  return s;
}

Layer begun(const std::string& kind, const std::string& options, int64_t seed = 7,
            Init init = Init::kGpt2) {
  torch::manual_seed(seed);
  auto shape = wide_shape();
  shape.init = init;
  return fresh(kind, shape, options);
}

bool knows_host(const std::string& kind) {
  return std::dynamic_pointer_cast<HeadOptions>(head_registry().options(kind))
      ->init_differences()
      .has_value();
}

// "q, k, v, o" names q.weight and q.bias, "theta" itself.
bool names(const InitDifference& difference, const std::string& parameter) {
  for (const std::string ending : {"", ".weight", ".bias"}) {
    if (!parameter.ends_with(ending)) continue;
    const auto stem = parameter.substr(0, parameter.size() - ending.size());
    if ((", " + difference.parameters + ",").find(", " + stem + ",") != std::string::npos)
      return true;
  }
  return false;
}

double deviation(const Tensor& t) { return t.numel() > 1 ? t.std().item<double>() : 0; }

// Drawn alike, or the same numbers; a few draws tell little.
bool begin_alike(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  if (at::equal(a, b)) return true;
  if ((deviation(a) == 0) != (deviation(b) == 0)) return false;
  const double within = 6 / std::sqrt(static_cast<double>(a.numel()));
  const double spread = std::max(deviation(a), deviation(b));
  return std::abs(deviation(a) - deviation(b)) < within * spread &&
         (a.mean() - b.mean()).abs().item<double>() < within * spread;
}

// Options that turn on what a kind's defaults leave out.
std::string rich_options(const std::string& kind) {
  if (kind == "gated") return ", gate: sigmoid, inner: {kind: mohsa, pre: true}";
  if (kind == "mohsa") return ", pre: true, post: true, qkv_bias: true";
  if (kind == "dcmha") return ", static: true, generator_bias: true";
  if (kind == "stickbreaking") return ", remainder: bias, norm: true";
  if (kind == "gla" || kind == "gta") return ", bias: true";
  if (kind == "mta")
    return ", pre_kernel: [3, 5], post_kernel: [2, 3], pre: true, post: 2, gate: head";
  return "";
}

// That of plain heads of wide_shape(), whose four projections are of one size.
Tensor plain_projection(const std::string& name, Init init) {
  auto shape = wide_shape();
  shape.init = init;
  Linear linear(shape.d_model, shape.heads * shape.head_dim, /*bias=*/false);
  if (name == "q.weight" || name == "k.weight" || name == "v.weight")
    init_input(linear, shape);
  else if (name == "o.weight")
    init_output(linear, shape);
  else
    return {};
  return linear->weight;
}

}  // namespace

TEST_CASE("`host` and `paper` differ in what init_differences() names and nowhere else", "[laws]") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      if (!knows_host(kind)) {
        not_promised();
        continue;
      }
      for (const auto& options : {std::string(), rich_options(kind)}) {
        const auto paper = begun(kind, options),
                   host = begun(kind, options + ", init_weights: host");
        const auto block = read_kind(kind, options);
        const auto differences = *block.as<HeadOptions>().init_differences();
        std::vector<bool> differs(differences.size());
        const auto theirs = paper->named_parameters();
        const auto paper_again = begun(kind, options, 8)->named_parameters(),
                   host_again =
                       begun(kind, options + ", init_weights: host", 8)->named_parameters();
        for (const auto& p : host->named_parameters()) {
          INFO(kind << options << ' ' << p.key());
          const auto* other = theirs.find(p.key());
          REQUIRE(other);
          const bool drawn = !at::equal(p.value(), host_again[p.key()]),
                     theirs_drawn = !at::equal(*other, paper_again[p.key()]);
          const bool alike = drawn == theirs_drawn && begin_alike(p.value(), *other);
          const auto named = std::find_if(differences.begin(), differences.end(),
                                          [&](const auto& one) { return names(one, p.key()); });
          if (named == differences.end())
            REQUIRE(alike);
          else if (!alike)
            differs[named - differences.begin()] = true;
        }
        REQUIRE(theirs.size() == host->named_parameters().size());
        for (size_t i = 0; i < differs.size(); ++i) {
          INFO(kind << options << ' ' << differences[i].parameters);
          if (options == rich_options(kind)) REQUIRE(differs[i]);
        }
      }
    }
}

TEST_CASE("by `host` the projections of every kind begin as those of plain heads", "[laws]") {
  const double residual = residual_std(wide_shape().layers);
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      if (!knows_host(kind)) {
        not_promised();
        continue;
      }
      for (const auto init : {Init::kPlain, Init::kXavier}) {
        const auto layer = begun(kind, rich_options(kind) + ", init_weights: host", 7, init);
        for (const auto& p : layer->named_parameters()) {
          const auto name = p.key().starts_with("inner.") ? p.key().substr(6) : p.key();
          const auto plain = plain_projection(name, init);
          if (!plain.defined() || plain.sizes() != p.value().sizes()) continue;
          INFO(kind << ' ' << p.key() << " by init " << static_cast<int>(init));
          REQUIRE(deviation(p.value()) == Approx(deviation(plain)).epsilon(0.05));
        }
      }
      const auto layer = begun(kind, rich_options(kind) + ", init_weights: host");
      for (const auto& p : layer->named_parameters()) {
        INFO(kind << ' ' << p.key());
        std::string name = p.key();
        if (name.starts_with("inner.")) name = name.substr(6);
        const bool input = name == "q.weight" || name == "k.weight" || name == "v.weight";
        if (input) REQUIRE(deviation(p.value()) == Approx(0.02).epsilon(0.05));
        if (name == "o.weight") REQUIRE(deviation(p.value()) == Approx(residual).epsilon(0.05));
        if (name.size() == 6 && name.ends_with(".bias") && std::string("qkvo").find(name[0]) < 4)
          REQUIRE(p.value().abs().max().item<double>() == 0);
      }
    }
}

TEST_CASE("a kind that does not say how it begins as plain heads do refuses `host`", "[laws]") {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      if (knows_host(kind)) {
        not_promised();
        continue;
      }
      try {
        begun(kind, ", init_weights: host");
        FAIL("it was built");
      } catch (const ConfigError& e) {
        const std::string said = e.what();
        INFO(said);
        REQUIRE(said.find("attention.init_weights: '" + kind + "' heads") != std::string::npos);
        REQUIRE(said.find("choose paper") != std::string::npos);
      }
    }
}

}  // namespace headlab::test_initialisation_laws
