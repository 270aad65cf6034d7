// Conversions of trained heads on tensors: what must come out, what stays as it was, what is
// refused. The whole command: test_command_convert.cpp.
#include "experiments/cases/case_file.h"
#include "experiments/conversion/convert.h"
#include "experiments/conversion/head_alignment.h"
#include "experiments/runs/checkpoint.h"
#include "headlab_build.h"
#include "tests/catch.h"
#include "tests/heads_testing.h"
#include "tests/scratch.h"

namespace headlab::test_convert {
using namespace testing;

namespace {

using Catch::Contains;

const std::filesystem::path kConversions =
    std::filesystem::path(build::kSourceDir) / "tests/golden/collaborative";

KindBlock block_of(const std::string& text) {
  KindBlock block(head_registry(), "mha");
  Problems problems;
  block.read(parse_config(text, "test"), "attention", problems);
  problems.raise();
  return block;
}

KindBlock block_of(const ConfigNode& node) { return block_of(to_flow(node)); }

// A trained layer of mha in float64, and its module.
struct Trained {
  std::shared_ptr<AttentionHeads> heads;
  TrainedLayer layer;

  explicit Trained(const HeadShape& shape, const std::string& options = "")
      : heads(make_layer("mha", shape, options)),
        layer{
            "layer 3", block_of("{kind: mha" + options + "}"), shape, {}, module_tensors(*heads)} {}
};

std::shared_ptr<AttentionHeads> built(const KindBlock& block, HeadShape shape,
                                      const NamedTensors& weights) {
  auto heads = make_heads(block, shape);
  heads->to(weights.at("q.weight").scalar_type());
  load_into(*heads, weights);
  heads->eval();
  return heads;
}

std::shared_ptr<AttentionHeads> built(const Trained& from, const Conversion& made) {
  auto shape = from.layer.shape;
  shape.kv_heads = made.kv_heads;
  return built(made.attention ? block_of(*made.attention) : from.layer.attention, shape,
               made.weights);
}

double relative(const Tensor& got, const Tensor& want) {
  return ((got - want).norm() / want.norm()).item<double>();
}

void check_refused(const std::function<void()>& convert, const std::string& said) {
  CHECK_THROWS_AS(convert(), ConfigError);
  CHECK_THROWS_WITH(convert(), Contains("layer 3: ") && Contains(said));
}

// Heads in pairs: 2 and 0, 3 and 1 have the same keys and values, but turned.
Trained turned_pairs(const std::string& options, bool keys_turned) {
  Trained from(small_shape(), options);
  at::NoGradGuard no_grad;
  auto& w = from.layer.weights;
  for (const auto& name : {"k", "v"})
    for (const int64_t h : {0, 1}) {
      const bool turned = keys_turned || name == std::string("v");
      const auto turn =
          turned ? std::get<0>(at::linalg_qr(random({6, 6}))) : at::eye(6, at::kDouble);
      auto rows = w.at(std::string(name) + ".weight").unflatten(0, {4, 6});
      rows[h + 2].copy_(at::matmul(turn, rows[h]));
      if (!w.contains(std::string(name) + ".bias")) continue;
      auto bias = w.at(std::string(name) + ".bias").unflatten(0, {4, 6});
      bias[h + 2].copy_(at::matmul(turn, bias[h]));
    }
  return from;
}

}  // namespace

TEST_CASE("the mean of a group's heads is what they become", "[convert]") {
  const auto k = random({6 * 4, 5}), bias = random({6 * 4});
  const auto mean = mean_of_groups(k, 2, 4);
  REQUIRE(mean.sizes() == at::IntArrayRef{2 * 4, 5});
  for (const int64_t g : {0, 1})
    for (const int64_t row : {0, 3}) {
      const auto heads =
          (k[(3 * g) * 4 + row] + k[(3 * g + 1) * 4 + row] + k[(3 * g + 2) * 4 + row]) / 3;
      CHECK(difference(mean[g * 4 + row], heads) < 1e-15);
    }
  CHECK(difference(mean_of_groups(bias, 6, 4), bias) == 0);
}

TEST_CASE("merging heads with equal keys and values changes nothing", "[convert]") {
  Trained from(small_shape(), ", bias: true");
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
    at::NoGradGuard no_grad;
    auto heads = from.layer.weights.at(name).unflatten(0, {4, 6});
    heads[1].copy_(heads[0]), heads[3].copy_(heads[2]);
  }
  const auto made = to_grouped(from.layer, 2);
  CHECK(made.kv_heads == 2);
  CHECK_FALSE(made.attention);
  CHECK(made.order.empty());
  CHECK(made.error < 1e-15);
  const auto x = random({2, 7, 20});
  CHECK(difference(built(from, made)->forward(x, causal()).y, from.heads->forward(x, causal()).y) <
        1e-12);
}

TEST_CASE("the error of merging is that of keys and values with their biases", "[convert]") {
  const Trained from(small_shape(), ", bias: true");
  const auto made = to_grouped(from.layer, 1);
  double apart = 0, whole = 0;
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
    const auto heads = from.layer.weights.at(name).unflatten(0, {4, 6});
    apart += (heads - heads.mean(0, true)).square().sum().item<double>();
    whole += heads.square().sum().item<double>();
  }
  CHECK(made.error == Approx(std::sqrt(apart / whole)).epsilon(1e-12));
  for (const char* name : {"q.weight", "q.bias", "o.weight", "o.bias", "alive"})
    CHECK(made.weights.at(name).equal(from.layer.weights.at(name)));
}

TEST_CASE("grouped heads merge further", "[convert]") {
  const Trained from(small_shape(4, 2));
  const auto made = to_grouped(from.layer, 1);
  const auto k = from.layer.weights.at("k.weight").unflatten(0, {2, 6});
  CHECK(difference(made.weights.at("k.weight"), (k[0] + k[1]) / 2) < 1e-15);
  CHECK(built(from, made)->forward(random({1, 3, 20})).y.isfinite().all().item<bool>());
}

TEST_CASE("aligned heads compute what they computed before", "[convert]") {
  const auto x = random({2, 7, 20});
  Rotary rotary;
  for (const int64_t kv_heads : {4, 2})
    for (const bool turn_keys : {false, true})
      for (const int64_t groups : {1, 2}) {
        const Trained from(small_shape(4, kv_heads), ", bias: true");
        auto ctx = causal();
        if (!turn_keys) ctx.rotary = &rotary;
        const auto aligned = align_heads(from.layer.weights, from.layer.shape, groups, turn_keys);
        const auto heads = built(from.layer.attention, from.layer.shape, aligned.weights);
        CHECK(difference(heads->forward(x, ctx).y, from.heads->forward(x, ctx).y) < 1e-11);
        CHECK(std::set<int64_t>(aligned.order.begin(), aligned.order.end()).size() == 4);
      }
}

TEST_CASE("alignment finds heads that are the same but for their place and a rotation",
          "[convert]") {
  const auto x = random({2, 7, 20});
  for (const bool rotary : {false, true}) {
    // Rotary positions fix the directions of keys, so there only values may be turned.
    auto from = turned_pairs(", bias: true", /*keys_turned=*/!rotary);
    from.layer.demands.rotary = rotary;
    Rotary turn;
    auto ctx = causal();
    if (rotary) ctx.rotary = &turn;
    const auto plain = to_grouped(from.layer, 2), aligned = to_grouped_aligned(from.layer, 2);
    CHECK(plain.error > 0.5);
    CHECK(aligned.error < 1e-10);
    CHECK(aligned.order == std::vector<int64_t>{0, 2, 1, 3});
    const auto y = from.heads->forward(x, ctx).y;
    CHECK(difference(built(from, aligned)->forward(x, ctx).y, y) < 1e-10);
    CHECK(relative(built(from, plain)->forward(x, ctx).y, y) > 0.1);
  }
}

TEST_CASE("alignment loses less on random heads too and takes masked heads along", "[convert]") {
  auto shape = small_shape(8, 8);
  Trained from(shape);
  from.heads->mask_heads({1, 6});
  from.layer.weights = module_tensors(*from.heads);
  const auto made = to_grouped_aligned(from.layer, 2);
  CHECK(made.error < to_grouped(from.layer, 2).error);
  for (int64_t h = 0; h < 8; ++h) {
    const bool alive = made.order[h] != 1 && made.order[h] != 6;
    CHECK(made.weights.at("alive")[h].item<int64_t>() == alive);
  }
  const auto q = from.layer.weights.at("q.weight").unflatten(0, {8, 6});
  const auto moved = made.weights.at("q.weight").unflatten(0, {8, 6});
  for (int64_t h = 0; h < 8; ++h)  // turned at most: the lengths tell which head it is
    CHECK(moved[h].norm().item<double>() ==
          Approx(q[made.order[h]].norm().item<double>()).epsilon(1e-12));
}

TEST_CASE("conversions keep the type of the weights", "[convert]") {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    Trained from(small_shape(), ", bias: true");
    for (auto& [name, tensor] : from.layer.weights)
      if (tensor.is_floating_point()) tensor = tensor.to(type);
    for (const auto& made : {to_grouped(from.layer, 2), to_grouped_aligned(from.layer, 1),
                             to_collaborative(from.layer), to_collaborative(from.layer, 5, 1)})
      for (const auto& [name, tensor] : made.weights)
        CHECK(tensor.scalar_type() == (name == "alive" ? at::kByte : type));
    CHECK(to_collaborative(from.layer)
              .weights.at("q.weight")
              .equal(from.layer.weights.at("q.weight")));
  }
}

TEST_CASE("what cannot be converted is refused and the layer named", "[convert]") {
  Trained from(small_shape());
  check_refused([&] { to_collaborative(from.layer, 25); }, "1 .. 24");
  check_refused([&] { to_collaborative(from.layer, 0); }, "1 .. 24");
  for (const int64_t kv_heads : {3, 4, 8})
    check_refused([&] { to_grouped(from.layer, kv_heads); }, "has 4 kv heads");
  from.layer.demands.bias = true;
  check_refused([&] { to_grouped_aligned(from.layer, 2); }, "without --align");
  CHECK_NOTHROW(to_grouped(from.layer, 2));
  CHECK_NOTHROW(to_collaborative(from.layer));
  from.layer.demands.rotary = true;
  check_refused([&] { to_collaborative(from.layer); }, "rotary positions");
  const Trained normed(small_shape(), ", qk_norm: true");
  check_refused([&] { to_collaborative(normed.layer); }, "qk_norm");
  CHECK_NOTHROW(to_grouped_aligned(normed.layer, 2));

  Trained sliced(small_shape());
  sliced.heads->mask_heads({2});
  sliced.layer.weights = module_tensors(*sliced.heads->slice());
  check_refused([&] { to_grouped(sliced.layer, 1); }, "was sliced");
  for (const auto& kind : head_names()) {
    if (kind == "mha") continue;
    TrainedLayer other = from.layer;
    other.attention = block_of("{kind: " + kind + "}");
    check_refused([&] { to_grouped(other, 2); }, "has '" + kind + "' heads");
    check_refused([&] { to_collaborative(other); }, "has '" + kind + "' heads");
  }
}

TEST_CASE("an exact copy computes what multi-head attention does", "[convert]") {
  for (const int64_t kv_heads : {4, 2})
    for (const std::string options : {"", ", bias: true", ", qkv_bias: true", ", o_bias: true",
                                      ", scale: 0.3", ", bias: true, scale: 1.5"}) {
      INFO(options << ", kv_heads " << kv_heads);
      const Trained from(small_shape(4, kv_heads), options);
      const auto made = to_collaborative(from.layer);
      CHECK(made.error == 0);
      CHECK(made.kv_heads == 4);
      const auto copy = built(from, made);
      const auto x = random({2, 7, 20}), memory = random({2, 5, 20});
      CHECK(difference(copy->forward(x, causal()).y, from.heads->forward(x, causal()).y) < 1e-12);
      HeadContext cross;
      cross.memory = memory;
      cross.bias = random({1, 4, 7, 5});
      CHECK(difference(copy->forward(x, cross).y, from.heads->forward(x, cross).y) < 1e-12);
    }
}

TEST_CASE("the bias of queries stays exact in a layer of lower rank", "[convert]") {
  Trained from(small_shape(), ", bias: true");
  // Without the weights of q all that is left of the scores are the content biases.
  from.layer.weights.at("q.weight").detach().zero_();
  const auto made = to_collaborative(from.layer, 3);
  const auto x = random({2, 7, 20});
  CHECK(difference(built(from, made)->forward(x).y, from.heads->forward(x).y) < 1e-12);
}

TEST_CASE("fewer shared features cost more and the cost is said", "[convert]") {
  const Trained from(small_shape(), ", bias: true");
  const auto x = random({2, 7, 20});
  const auto y = from.heads->forward(x).y;
  double before = 0;
  for (const int64_t features : {20, 12, 6, 2}) {
    const auto made = to_collaborative(from.layer, features, 2);
    CHECK(made.error > before);
    CHECK(made.error < 1);
    CHECK(relative(built(from, made)->forward(x).y, y) > 1e-3);
    before = made.error;
  }
}

TEST_CASE("the authors' conversions are reproduced", "[convert][golden]") {
  int copies = 0, decompositions = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kConversions)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with("convert_")) continue;
    const auto verdicts = judge_case(entry.path(), at::kCPU, Backend::kAuto).verdicts;
    const bool cp = file.starts_with("convert_cp_");
    (cp ? decompositions : copies) += 1;
    CHECK(verdicts.size() == (cp ? 5 : 12));
    for (const auto& verdict : verdicts) {
      INFO(file << "\n" << verdict_line(verdict));
      CHECK(verdict.pass);
    }
  }
  CHECK(copies == 2);
  CHECK(decompositions == 4);
}

TEST_CASE("a conversion file that says something else fails", "[convert][golden]") {
  const Scratch scratch;
  const auto perturbed =
      [&](const std::string& file,
          const std::function<void(NamedTensors&, std::map<std::string, std::string>&)>& change) {
        std::map<std::string, std::string> metadata;
        auto tensors = read_tensors(kConversions / file, &metadata);
        change(tensors, metadata);
        write_tensors(scratch / "wrong.safetensors", tensors, metadata);
        std::set<std::string> failed;
        const auto path = scratch / "wrong.safetensors";
        for (const auto& verdict : judge_case(path, at::kCPU, Backend::kAuto).verdicts)
          if (!verdict.pass) failed.insert(verdict.name);
        return failed;
      };
  using Names = std::set<std::string>;
  const std::string copy = "convert_bert.safetensors", cp = "convert_cp_shared_r8.safetensors";
  CHECK(perturbed(copy, [](auto& t, auto&) { t["to.w.content_bias.weight"][2][5] += 1e-6; }) ==
        Names{"to.w.content_bias.weight"});
  CHECK(perturbed(copy, [](auto& t, auto&) { t["out.y"][1][2][3] += 1e-6; }) ==
        Names{"from: out.y", "out.y"});
  CHECK(perturbed(copy, [](auto& t, auto&) { t["from.w.k.bias"] += 1; }).empty());
  CHECK(perturbed(cp, [](auto&, auto& m) { m["cp_bound"] = "0.2"; }) == Names{"cp.rel_error"});
  CHECK(perturbed(cp, [](auto& t, auto&) { t["to.w.mixing"] *= 1.001; }) ==
        Names{"cp.out_error of to.y", "cp_to_rel_error", "to.y"});
  CHECK_THROWS_WITH(perturbed(copy, [](auto& t, auto&) { t.erase("from.w.q.bias"); }),
                    Contains("(from): w.q.bias is missing"));
  CHECK_THROWS_WITH(perturbed(copy, [](auto&, auto& m) { m["config"] = "{}"; }),
                    Contains("no layer 'from'"));
  CHECK_THROWS_WITH(perturbed(cp, [](auto& t, auto&) { t.erase("to.y"); }),
                    Contains("to.y is missing"));
}

}  // namespace headlab::test_convert
