// Statistics of routes: against the closed form of a golden file, pooling, padding and the names
// that exist only by head or only where something is routed.
#include "experiments/analysis/recorded_values.h"
#include "experiments/models/named_tensors.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/layers_testing.h"
#include "variants/moh/routes.h"

namespace headlab::test_routes {
using namespace testing;

namespace {

// Random routes of H heads, the first hs of them shared.
Routes random_routes(int64_t B, int64_t T, int64_t H, int64_t hs, int64_t K) {
  Routes routes;
  routes.routed = at::arange(hs, H);
  routes.probability = at::softmax(3 * random({B, T, H - hs}), -1);
  routes.selected = choose_heads(routes.probability, K);
  routes.alpha = at::rand({B, T}, at::kDouble);
  routes.gates =
      at::cat({at::rand({B, T, hs}, at::kDouble) + 0.1, routes.probability * routes.selected}, 2);
  return routes;
}

std::map<std::string, std::vector<double>> route_values(const Routes& r, const Tensor& length) {
  return recorded_values("moh", r.gates.size(2),
                         {{"gates", r.gates},
                          {"probability", r.probability},
                          {"selected", r.selected},
                          {"alpha", r.alpha},
                          {"routed", r.routed},
                          {"query_length", length}});
}

void require_equal(const std::map<std::string, std::vector<double>>& got,
                   const std::map<std::string, std::vector<double>>& want) {
  for (const auto& [name, values] : want)
    for (size_t n = 0; n < values.size(); ++n) {
      INFO(name << "[" << n << "]");
      if (std::isnan(values[n]))
        REQUIRE(std::isnan(got.at(name)[n]));
      else
        REQUIRE(got.at(name)[n] == Approx(values[n]).epsilon(1e-12).margin(1e-12));
    }
}

}  // namespace

TEST_CASE("routes: the golden file's numbers", "[routes][golden]") {
  std::map<std::string, std::string> metadata;
  const auto t = read_tensors(
      std::filesystem::path(build::kSourceDir) / "tests/golden/statistics/routes.safetensors",
      &metadata);
  REQUIRE(metadata["headlab_case"] == "routes-1");
  const int64_t shared = std::stoll(metadata["shared"]), H = t.at("in.gates").size(3);
  int judged = 0;
  for (int64_t layer = 0; layer < t.at("in.gates").size(0); ++layer) {
    Routes routes;
    routes.gates = t.at("in.gates")[layer];
    routes.probability = t.at("in.probability")[layer];
    routes.selected = t.at("in.selected")[layer].to(at::kBool);
    routes.alpha = t.at("in.alpha")[layer].select(2, 0);
    routes.routed = at::arange(shared, H);
    const auto values = route_values(routes, t.at("in.length"));
    for (const auto& [name, want] : t) {
      if (!name.starts_with("out.")) continue;
      const auto& got = values.at(name.substr(4));
      const auto row = want[layer].reshape({-1});  // [H], [E] or [1]
      const int64_t first = static_cast<int64_t>(got.size()) - row.size(0);
      for (int64_t n = 0; n < row.size(0); ++n) {
        INFO(name << " layer " << layer << " entry " << n);
        REQUIRE(got[first + n] == Approx(row[n].item<double>()).epsilon(1e-9).margin(1e-11));
        ++judged;
      }
      for (int64_t h = 0; h < first; ++h) REQUIRE(std::isnan(got[h]));
    }
  }
  REQUIRE(judged == 2 * (8 + 8 + 6 + 6 + 5));
}

TEST_CASE("routes: closed forms of a balanced and of a collapsed router", "[routes]") {
  const int64_t T = 8, E = 4;
  Routes routes;
  routes.routed = at::arange(1, 5);
  routes.probability = at::full({1, T, E}, 0.25, at::kDouble);
  routes.selected = at::zeros({1, T, E}, at::kBool);
  for (int64_t t = 0; t < T; ++t) {
    routes.selected[0][t][t % 4] = true;
    routes.selected[0][t][(t + 1) % 4] = true;
  }
  routes.gates = at::cat({at::ones({1, T, 1}), 3 * routes.selected}, 2).to(at::kDouble);
  auto balanced = route_values(routes, {});
  REQUIRE(balanced["load_entropy"][0] == Approx(1));
  REQUIRE(balanced["load_max"][0] == Approx(1));
  REQUIRE(balanced["dead_heads"][0] == 0);
  REQUIRE(balanced["balance_code"][0] == Approx(2));
  REQUIRE(balanced["balance_paper"][0] == Approx(0.5));
  REQUIRE(balanced["route_entropy"][0] == Approx(std::log(4)));
  REQUIRE(balanced["near_tie"][0] == 1);
  REQUIRE(balanced["density"] == std::vector<double>{1, .5, .5, .5, .5});
  REQUIRE(balanced["gate_mean"][1] == Approx(1.5));
  REQUIRE(balanced["gate_std"][1] == Approx(1.5));
  REQUIRE(balanced["gate_std"][0] == 0);
  REQUIRE(balanced["gate_selected"][1] == Approx(3));
  REQUIRE(std::isnan(balanced["gate_selected"][0]));
  REQUIRE(std::isnan(balanced["alpha_shared"][0]));

  routes.selected = (at::arange(E) < 2).expand({1, T, E});
  routes.probability = at::tensor({.6, .3, .1, 0.}, at::kDouble).expand({1, T, E});
  auto collapsed = route_values(routes, {});
  REQUIRE(collapsed["load_entropy"][0] == Approx(0.5));
  REQUIRE(collapsed["load_max"][0] == Approx(2));
  REQUIRE(collapsed["dead_heads"][0] == 2);
  REQUIRE(collapsed["near_tie"][0] == 0);
  REQUIRE(std::isnan(collapsed["gate_selected"][4]));
  routes.selected = at::ones({1, T, E}, at::kBool);
  REQUIRE(route_values(routes, {})["near_tie"][0] == 0);  // nothing to choose
}

TEST_CASE("routes: padding and batches pool", "[routes]") {
  const auto routes = random_routes(3, 9, 6, 2, 2);
  const auto length = at::tensor({int64_t{9}, int64_t{4}, int64_t{1}});
  const auto whole = route_values(routes, length);
  HeadProbe probe;
  probe.statistics = true;
  for (int64_t b = 0; b < 3; ++b) {
    probe.enter({.heads = 6,
                 .head_ids = {0, 1, 2, 3, 4, 5},
                 .alive = std::vector<bool>(6, true),
                 .own = route_statistics()});
    const int64_t n = length[b].item<int64_t>();
    auto part = [&](const Tensor& t) { return t.narrow(0, b, 1).narrow(1, 0, n); };
    report_routes(probe,
                  {part(routes.gates), part(routes.probability), part(routes.selected),
                   part(routes.alpha), routes.routed},
                  {});
  }
  require_equal(probe.values(0), whole);
}

TEST_CASE("routes: a layer's statistics are those of its gates", "[routes]") {
  const auto layer = make_layer("moh", small_shape(6, 6), ", shared: 2, active: 2");
  const auto x = random({2, 9, 20});
  HeadContext ctx;
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({int64_t{9}, int64_t{5}});
  auto seen = run(layer, x, ctx).statistics;
  const auto g = layer->forward(x, ctx).gates;
  const auto valid = at::cat({g[0], g[1].narrow(0, 0, 5)});  // [14,6]
  for (int64_t h = 0; h < 6; ++h) {
    const auto column = valid.select(1, h);
    REQUIRE(seen["gate_mean"][h] == Approx(column.mean().item<double>()));
    REQUIRE(seen["gate_std"][h] == Approx(column.std(/*unbiased=*/false).item<double>()));
    REQUIRE(seen["density"][h] == Approx((column != 0).to(at::kDouble).mean().item<double>()));
    REQUIRE(std::isnan(seen["selected"][h]) == (h < 2));
    if (h >= 2) REQUIRE(seen["selected"][h] == seen["density"][h]);
  }
  double f = 0, P = 0;
  for (int64_t h = 2; h < 6; ++h) f += seen["selected"][h], P += seen["probability"][h];
  REQUIRE(f == Approx(2));
  REQUIRE(P == Approx(1));
  const auto a = at::softmax(at::linear(x, parameter(layer, "router.groups.weight")), -1);
  REQUIRE(seen["alpha_shared"][0] ==
          Approx(at::cat({a[0], a[1].narrow(0, 0, 5)}).select(1, 0).mean().item<double>()));
}

TEST_CASE("routes: tokens are counted by class where the observer knows them", "[routes]") {
  const auto layer = make_layer("moh", small_shape(6, 6), ", shared: 2, active: 2");
  const auto x = random({2, 9, 20});
  const auto classes =
      at::tensor({1, 0, 0, 3, 0, 3, 0, 0, 3, 1, 0, 3, 0, 0, 2, 2, 2, 2}).view({2, 9});
  HeadContext ctx;
  ctx.mask.query_length = ctx.mask.key_length = at::tensor({int64_t{9}, int64_t{5}});
  const auto seen = [&](bool by_token, const HeadContext& given) {
    HeadProbe probe;
    probe.statistics = true;
    if (by_token) {
      probe.tokens = classes + 4;
      probe.class_of_token = at::tensor({9, 9, 9, 9, 0, 1, 2, 3}).to(at::kByte);
    } else {
      probe.classes = classes.to(at::kByte);
    }
    auto watched = given;
    watched.observer = &probe;
    layer->forward(x, watched);
    return probe.values(1);
  };
  const auto g = layer->forward(x, ctx).gates;
  const auto valid = at::cat({g[0], g[1].narrow(0, 0, 5)});                 // [14,6]
  const auto of_valid = at::cat({classes[0], classes[1].narrow(0, 0, 5)});  // [14]
  const char* const names[] = {"word", "cls", "sep", "punctuation"};
  for (bool by_token : {false, true}) {
    const auto got = seen(by_token, ctx);
    for (int64_t c = 0; c < 4; ++c) {
      const auto members = valid.index({of_valid == c});  // [n,6]
      double routed = 0;
      for (int64_t h = 0; h < 6; ++h) {
        INFO(names[c] << " " << h);
        const double density = got.at(std::string("density_") + names[c])[h],
                     gate = got.at(std::string("gate_") + names[c])[h];
        REQUIRE(std::isnan(density) == (c == 2));  // only in the padding
        if (c == 2) continue;
        const auto of_head = members.select(1, h);
        REQUIRE(density == Approx((of_head != 0).to(at::kDouble).mean().item<double>()));
        REQUIRE(gate == Approx(of_head.mean().item<double>()));
        if (h >= 2) routed += density;
      }
      if (c != 2) REQUIRE(routed == Approx(2));  // K
    }
  }
  // Of a memory the classes are not those of the tokens that are routed.
  auto cross = HeadContext();
  cross.memory = random({2, 9, 20});
  REQUIRE(std::isnan(seen(false, cross).at("density_word")[0]));
  REQUIRE(std::isnan(run(layer, x, ctx).statistics.at("density_word")[0]));
}

TEST_CASE("routes: classes of the last tokens are those of what is decoded", "[routes]") {
  const auto layer = make_layer("moh", small_shape(6, 6), ", shared: 2, active: 2");
  const auto x = random({2, 4, 20});
  LayerCache cache;
  HeadProbe probe;
  probe.statistics = true;
  probe.classes = at::tensor({0, 3, 0, 1, 0, 0, 0, 1}).view({2, 4}).to(at::kByte);
  auto ctx = causal();
  ctx.cache = &cache;
  layer->forward(x.narrow(1, 0, 3), ctx);
  ctx.observer = &probe;
  layer->forward(x.narrow(1, 3, 1), ctx);
  REQUIRE(probe.values(1).at("density_cls")[0] == 1);
  REQUIRE(std::isnan(probe.values(1).at("density_word")[0]));
}

TEST_CASE("routes: pruned layers count in original heads, masked and sliced alike", "[routes]") {
  const auto layer = make_layer("moh", small_shape(6, 6), ", shared: 2, active: 2");
  const auto x = random({2, 9, 20});
  layer->mask_heads({1, 3});
  auto masked = run(layer, x).statistics;
  require_equal(run(layer->slice(), x).statistics, masked);
  REQUIRE(std::isnan(masked["density"][1]));
  REQUIRE(std::isnan(masked["selected"][3]));
  REQUIRE(masked["density"][0] == 1);
  REQUIRE(masked["selected"][2] + masked["selected"][4] + masked["selected"][5] == Approx(2));
  // Without routed heads the names are there all the same.
  layer->mask_heads({2, 3, 4, 5});
  auto shared = run(layer, x).statistics;
  for (const auto& s : layer->own_statistics()) REQUIRE(shared.contains(s.name));
  REQUIRE(std::isnan(shared["load_max"][0]));
  REQUIRE(shared["gate_mean"][0] + shared["gate_mean"][1] == Approx(2));
}

TEST_CASE("routes: kinds without routes have none of these statistics", "[routes]") {
  const auto values = run(make_layer("mha", small_shape()), random({2, 7, 20})).statistics;
  for (const auto& s : route_statistics()) REQUIRE_FALSE(values.contains(s.name));
}

}  // namespace headlab::test_routes
