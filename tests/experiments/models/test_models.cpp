// The decoder: names, initial values, options, gradients, states and losses of its heads.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "experiments/data/task.h"
#include "experiments/files/config_schema.h"
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_models {
namespace {

using testing::complaint;
using testing::decoder_options;
using testing::difference;
using testing::logits_of;
using testing::small_decoder;
using testing::some_ids;

// A kind with losses of both sorts, a gate with a rate of its own, and demands on its shape.
class Fake : public AttentionHeads {
 public:
  struct Options : HeadOptions {
    HeadTraits traits() const override { return {.rotary = false}; }
    int64_t parts = 1;
    double weight = 1;
    void visit(Fields& f) override {
      f("parts", parts, "must divide the heads", at_least(1));
      f("weight", weight, "of its losses");
    }
    void check_shape(const HeadShape& shape, const HeadDemands&,
                     const Complain& complain) const override {
      if (shape.heads % parts != 0) complain("parts", "must divide the heads");
    }
  };
  Fake(const HeadShape& shape, const Options& options)
      : AttentionHeads(shape, options.traits()), options_(options) {
    gate_ = parameter("gate", at::ones({shape.heads}), heads_along({0}));
  }
  std::vector<std::string> aux_names() const override { return {"summed", "averaged"}; }
  void parameter_groups(ParameterGroups& groups) override { groups.gates.push_back(gate_); }
  void after_step() override { gate_.data().clamp_(0.5, 2); }

 private:
  HeadOutput compute(const Tensor& x, const HeadCall&) override {
    const double depth = static_cast<double>(shape_.layer + 1);
    auto size = options_.weight * depth * gate_.square().sum();
    return {.y = x * gate_.mean(),
            .aux = {{"summed", size, OverLayers::kSum}, {"averaged", size, OverLayers::kMean}}};
  }
  Options options_;
  Tensor gate_;
};
const RegisterHeads<Fake> registered("fake", "for tests");

TEST_CASE("the decoder of nanoGPT's CPU recipe has its parameters under the names of the spec") {
  auto model =
      model_kind("decoder").make(*decoder_options("{}"), {.vocabulary = 65, .context = 64});
  int64_t count = 0;
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) {
    count += item.value().numel();
    if (item.key().find("blocks.") != 0 || item.key().find("blocks.3.") == 0)
      names.push_back(item.key());
  }
  CHECK(count == 804096);
  CHECK(names == std::vector<std::string>{
                     "embed.token.weight", "embed.position.weight", "blocks.3.norm1.weight",
                     "blocks.3.attention.q.weight", "blocks.3.attention.k.weight",
                     "blocks.3.attention.v.weight", "blocks.3.attention.o.weight",
                     "blocks.3.norm2.weight", "blocks.3.mlp.up.weight", "blocks.3.mlp.down.weight",
                     "norm.weight"});
  // 4 layers of 24 D^2 + 2 T D, and the output head.
  CHECK(model->flops_per_token() == 4 * (24 * 128 * 128 + 2 * 64 * 128) + 2 * 128 * 65);
}

TEST_CASE("options add the parameters that they need and no others") {
  auto model = small_decoder(
      "{layers: 1, d_model: 16, heads: 4, kv_heads: 2, head_dim: 6, d_ff: 24, norm: rms, "
      "mlp: swiglu, position: relative, bias: true, tie: false}");
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const auto& item : model->named_parameters())
    shapes[item.key()] = item.value().sizes().vec();
  CHECK(shapes ==
        std::map<std::string, std::vector<int64_t>>{{"embed.token.weight", {29, 16}},
                                                    {"embed.relative.weight", {32, 4}},
                                                    {"blocks.0.norm1.weight", {16}},
                                                    {"blocks.0.attention.q.weight", {24, 16}},
                                                    {"blocks.0.attention.k.weight", {12, 16}},
                                                    {"blocks.0.attention.v.weight", {12, 16}},
                                                    {"blocks.0.attention.o.weight", {16, 24}},
                                                    {"blocks.0.norm2.weight", {16}},
                                                    {"blocks.0.mlp.up.weight", {24, 16}},
                                                    {"blocks.0.mlp.up.bias", {24}},
                                                    {"blocks.0.mlp.gate.weight", {24, 16}},
                                                    {"blocks.0.mlp.gate.bias", {24}},
                                                    {"blocks.0.mlp.down.weight", {16, 24}},
                                                    {"blocks.0.mlp.down.bias", {16}},
                                                    {"norm.weight", {16}},
                                                    {"head.weight", {29, 16}}});
  const auto post =
      small_decoder("{layers: 1, d_model: 16, heads: 4, pre_norm: false, bias: true}");
  const auto parameters = post->named_parameters();
  CHECK(parameters.contains("blocks.0.norm2.bias"));
  CHECK_FALSE(parameters.contains("norm.weight"));
}

TEST_CASE("a fresh decoder is initialised as GPT-2") {
  torch::manual_seed(0);
  auto model = model_kind("decoder").make(*decoder_options("{bias: true, tie: false}"),
                                          {.vocabulary = 65, .context = 64});
  for (const auto& item : model->named_parameters()) {
    INFO(item.key());
    const auto& name = item.key();
    if (name.ends_with("bias")) {
      CHECK(item.value().abs().max().item<double>() == 0);
    } else if (item.value().dim() == 1) {
      CHECK(difference(item.value(), at::ones_like(item.value())) == 0);
    } else {
      const bool into_residual = name.ends_with("o.weight") || name.ends_with("down.weight");
      const double std = into_residual ? 0.02 / std::sqrt(8.0) : 0.02;
      CHECK(item.value().std().item<double>() == Approx(std).epsilon(0.05));
      CHECK(item.value().mean().item<double>() == Approx(0).margin(std * 0.1));
    }
  }
}

TEST_CASE("every option trains: all gradients are finite, and every parameter gets one") {
  const auto ids = some_ids(2, 7), targets = some_ids(2, 7).flip(1);
  for (const char* mlp : {"gelu", "gelu_tanh", "swiglu", "relu"})
    for (const char* norm : {"layer", "rms"})
      for (const char* position : {"learned", "sinusoidal", "rope", "alibi", "relative", "none"})
        for (bool pre_norm : {true, false})
          for (bool other : {true, false}) {
            const auto yaml = fmt::format(
                "{{layers: 2, d_model: 16, heads: 4, kv_heads: 2, mlp: {}, norm: {}, position: {}, "
                "pre_norm: {}, tie: {}, bias: {}, dropout: {}}}",
                mlp, norm, position, pre_norm, other, !other, other ? 0.1 : 0.0);
            INFO(yaml);
            auto model = small_decoder(yaml);
            model->train();
            cross_entropy_sum(logits_of(*model, ids), targets).backward();
            for (const auto& item : model->named_parameters()) {
              INFO(item.key());
              REQUIRE(item.value().grad().defined());
              REQUIRE(item.value().grad().isfinite().all().item<bool>());
              REQUIRE(item.value().grad().abs().max().item<double>() > 0);
            }
          }
}

TEST_CASE("the gradient of a tied embedding is the sum of its two uses") {
  const auto ids = some_ids(2, 7), targets = some_ids(2, 7).flip(1);
  const std::string shape = "{layers: 1, d_model: 16, heads: 4, tie: ";
  auto tied = small_decoder(shape + "true}"), untied = small_decoder(shape + "false}");
  auto free = untied->named_parameters();
  {
    at::NoGradGuard no_grad;
    for (auto& item : tied->named_parameters()) free[item.key()].copy_(item.value());
    free["head.weight"].copy_(free["embed.token.weight"]);
  }
  for (auto* model : {&tied, &untied})
    cross_entropy_sum(logits_of(**model, ids), targets).backward();
  const auto sum = free["embed.token.weight"].grad() + free["head.weight"].grad();
  CHECK(difference(tied->named_parameters()["embed.token.weight"].grad(), sum) < 1e-12);
}

TEST_CASE("dropout is a function of seed and step alone, and rests in evaluation") {
  const auto ids = some_ids(2, 7);
  for (const char* rates : {"dropout: 0.4, attention_dropout: 0.0", "attention_dropout: 0.4",
                            "activation_dropout: 0.4"}) {
    auto model = small_decoder(fmt::format("{{layers: 2, d_model: 16, heads: 4, {}}}", rates));
    const auto run = [&](uint64_t seed, uint64_t step) {
      ModelContext ctx;
      ctx.rng.seed = seed;
      ctx.rng.step = step;
      return model->forward({ids}, ctx).logits;
    };
    CHECK(difference(run(1, 1), run(2, 2)) == 0);
    model->train();
    const auto first = run(1, 1);
    at::randn({100});  // a hidden state would have moved
    CHECK(difference(run(1, 1), first) == 0);
    CHECK(difference(run(1, 2), first) > 1e-3);
    CHECK(difference(run(2, 1), first) > 1e-3);
  }
}

TEST_CASE("a model called without a seed drops anew in every pass, as torch's generator says") {
  const auto ids = some_ids(2, 7);
  for (const char* rates : {"dropout: 0.4, attention_dropout: 0.0", "attention_dropout: 0.4",
                            "activation_dropout: 0.4"}) {
    INFO(rates);
    auto model = small_decoder(fmt::format("{{layers: 2, d_model: 16, heads: 4, {}}}", rates));
    model->train();
    const auto run = [&] { return model->forward({ids}, {}).logits; };
    torch::manual_seed(3);
    const auto first = run(), second = run();
    CHECK(difference(first, second) > 1e-3);
    torch::manual_seed(3);
    CHECK(difference(run(), first) == 0);
    CHECK(difference(run(), second) == 0);
  }
}

TEST_CASE("losses of heads are summed or averaged over the layers that return them, by name") {
  auto model = small_decoder(
      "{layers: 3, d_model: 16, heads: 4, attention: {kind: fake, weight: 2.0}, "
      "attention_at: {\"1\": mha}}");
  double layers[3] = {};
  for (const auto& item : model->named_parameters())
    if (item.key().ends_with("gate")) {
      const int layer = item.key()[7] - '0';
      layers[layer] = 2 * (layer + 1) * item.value().square().sum().item<double>();
    }
  const auto aux = model->forward({some_ids(1, 5)}, {}).aux;
  REQUIRE(aux.size() == 2);
  CHECK(aux[0].name == "summed");
  CHECK(aux[0].value.item<double>() == Approx(layers[0] + layers[2]));
  CHECK(aux[1].name == "averaged");
  CHECK(aux[1].value.item<double>() == Approx((layers[0] + layers[2]) / 2));
}

TEST_CASE("hidden states go from the first block's input to the last one's output") {
  auto model = small_decoder("{layers: 2, d_model: 16, heads: 4, norm: rms}");
  HiddenStates states;
  ModelContext ctx;
  ctx.hidden = &states;
  const auto ids = some_ids(1, 5);
  const auto logits = model->forward({ids}, ctx).logits;
  const auto& hidden = states.at("");
  REQUIRE(hidden.size() == 3);
  auto p = model->named_parameters();
  CHECK(difference(hidden[0], p["embed.token.weight"].index({ids}) +
                                  p["embed.position.weight"].slice(0, 0, 5)) < 1e-12);
  const auto norm = at::rms_norm(hidden[2], {16}, p["norm.weight"], 1e-5);
  CHECK(difference(at::matmul(norm, p["embed.token.weight"].t()), logits) < 1e-12);
}

TEST_CASE("heads that are exchanged bring their parameters and compute in place of the old") {
  auto model = small_decoder("{layers: 2, d_model: 16, heads: 4}");
  const auto ids = some_ids(1, 5);
  auto site = model->sites()[0].layers;
  (*site[1])->mask_heads({0, 2});
  const auto masked = logits_of(*model, ids);
  model->exchange("self", 1, (*site[1])->slice());
  CHECK(difference(logits_of(*model, ids), masked) < 1e-12);
  CHECK(model->named_parameters()["blocks.1.attention.q.weight"].size(0) == 8);
  CHECK((*site[1])->head_ids() == std::vector<int64_t>{1, 3});  // the pointer stays in place
}

TEST_CASE("heads by layer: the same kind merges, another kind replaces") {
  const auto names = [](const std::string& attention) {
    auto model = small_decoder("{layers: 4, d_model: 16, heads: 4, " + attention + "}");
    std::vector<std::string> found;
    for (const auto& item : model->named_parameters())
      if (item.key().find("q.bias") != std::string::npos ||
          item.key().find("q_norm") != std::string::npos ||
          item.key().find("gate") != std::string::npos)
        found.push_back(item.key().substr(7, 1) + " " + item.key().substr(19));
    return found;
  };
  CHECK(names("attention: {qk_norm: true}, attention_at: {\"0\": {bias: true}, \"2-3\": fake}") ==
        std::vector<std::string>{"0 q.bias", "0 q_norm.weight", "1 q_norm.weight", "2 gate",
                                 "3 gate"});
  CHECK(names("attention: {kind: mha, qk_norm: true}, "
              "attention_at: {\"1\": {kind: mha, qk_norm: false, bias: true}}") ==
        std::vector<std::string>{"0 q_norm.weight", "1 q.bias", "2 q_norm.weight",
                                 "3 q_norm.weight"});
  CHECK(names("attention: fake, attention_at: {\"0-2\": mha, \"3\": {kind: mha, bias: true}}") ==
        std::vector<std::string>{"3 q.bias"});
}

TEST_CASE("kinds change with depth: overlaps, windows, and other numbers of routed heads") {
  const auto parameter_count = [](Model& model, const std::string& path) {
    int64_t count = 0;
    for (const auto& p : model.named_parameters())
      if (p.key().starts_with(path)) count += p.value().numel();
    return count;
  };
  // Paradigm 2 of overlapping heads: o = layer + 1, and 2 o H D more in each layer's projection.
  auto model = small_decoder(
      "{layers: 3, d_model: 24, heads: 4, attention: {kind: mohsa, overlap: {direction: up, "
      "start: 1, every: 1}}}");
  for (int64_t layer = 0; layer < 3; ++layer)
    CHECK(parameter_count(*model, fmt::format("blocks.{}.attention.o.weight", layer)) ==
          24 * (24 + 2 * 4 * (layer + 1)));
  // All shared first, routed behind; each layer routes as it is told.
  model = small_decoder(
      "{layers: 3, d_model: 24, heads: 4, attention: {kind: moh, shared: 1, active: 1}, "
      "attention_at: {\"0\": {shared: 4, active: 0}, \"2\": {active: 3}}}");
  HeadProbe probe;
  probe.statistics = true;
  ModelContext ctx;
  ctx.observer = &probe;
  model->forward({some_ids(2, 12)}, ctx);
  for (const auto& [layer, active] : std::map<int64_t, double>{{0, 4}, {1, 2}, {2, 4}}) {
    const auto density = probe.values(layer).at("density");
    CHECK(std::accumulate(density.begin(), density.end(), 0.0) == Approx(active));
  }
  // A window in every other layer: layer 0 sees three tokens, layer 1 all.
  model = small_decoder(
      "{layers: 2, d_model: 24, heads: 4, window: [3, 0], attention: {kind: dcmha, static: true}}");
  HeadProbe maps;
  maps.maps = true;
  ctx.observer = &maps;
  model->forward({some_ids(1, 12)}, ctx);
  CHECK(maps.layer_maps().at(0).tril(-3).abs().max().item<double>() == 0);
  CHECK(maps.layer_maps().at(1).tril(-3).abs().max().item<double>() > 0);
}

TEST_CASE("what is wrong with a decoder's options is said with its place") {
  const auto both = [](const std::string& a, const std::string& b) { return a + "\n" + b; };
  CHECK(
      complaint("heads: 3") ==
      "test.yaml:1:8: heads: 3 heads do not divide d_model 128; choose a divisor or set head_dim");
  CHECK(complaint("heads: 3\nhead_dim: 8").empty());
  CHECK(complaint("kv_heads: 3") ==
        "test.yaml:1:11: kv_heads: 3 kv_heads do not divide heads 4; choose a divisor");
  CHECK(complaint("attention: {kind: fake, parts: 3}") ==
        "test.yaml:1:32: attention.parts: must divide the heads");
  CHECK(complaint(
            "attention_at:\n  \"1-2\": {kind: fake, parts: 3}\n  \"3\": {kind: fake, parts: 5}") ==
        both("test.yaml:2:30: attention_at.1-2.parts: must divide the heads",
             "test.yaml:3:28: attention_at.3.parts: must divide the heads"));
  CHECK(complaint("attention_at: {\"0-2\": mha, \"2\": fake}") ==
        "test.yaml:1:33: attention_at.2: overlaps \"0-2\"");
  CHECK(complaint("attention_at: {\"2-4\": mha}") ==
        "test.yaml:1:23: attention_at.2-4: there are only layers 0 to 3");
  CHECK(
      complaint("attention_at: {first: mha}") ==
      "test.yaml:1:16: attention_at.first: must be a layer (\"3\") or a range of layers (\"2-5\")");
  CHECK_THAT(complaint("attention_at: {\"3-2\": mha}"), Catch::Contains("must be a layer"));
  CHECK(complaint("attention_at: {\"0\": {bais: true}}") ==
        "test.yaml:1:22: attention_at.0.bais: unknown key; did you mean 'bias'?");
  CHECK_THAT(complaint("attention_at: {\"0\": {kind: mah}}"),
             Catch::Contains("attention_at.0.kind: must be one of") &&
                 Catch::Contains("did you mean 'mha'?"));
  // A wrong `attention` is reported where it stands, not again for each layer that merges over it.
  CHECK(complaint("attention: {bais: true}\nattention_at: {\"0\": {bias: true}}") ==
        "test.yaml:1:13: attention.bais: unknown key; did you mean 'bias'?");
  CHECK(
      complaint("position: rotary") ==
      "test.yaml:1:11: position: must be one of learned, sinusoidal, rope, alibi, relative, none");
  CHECK(complaint("position: {kind: rope, buckets: 8}") ==
        "test.yaml:1:24: position.buckets: unknown key; kind relative has it; known are kind, "
        "base, layout, fraction");
  CHECK(complaint("position: {kind: relative, max_distance: 16}") ==
        "test.yaml:1:42: position.max_distance: must be above 16, half the buckets");
  CHECK(complaint("d_model: 15\nheads: 5\nposition: sinusoidal") ==
        "test.yaml:3:11: position: sinusoidal needs an even d_model, not 15");
  CHECK(complaint("layers: 1\nwindow: [4, 0]") ==
        "test.yaml:2:9: window: has 2 entries for 1 layers");
  CHECK(complaint("window: []") == "test.yaml:1:9: window: is empty; 0 means no window");
}

TEST_CASE("heads that cannot do what the decoder asks are refused when it is built") {
  CHECK_THROWS_WITH(small_decoder("{position: rope, attention: fake}"),
                    "test.yaml:1:29: attention: 'fake' heads know no rotary positions");
}

TEST_CASE("the options of a decoder read back as they were written") {
  for (const char* yaml :
       {"{}", "{position: {kind: rope, base: 500.0}, window: [4, 0], kv_heads: 2}",
        "{position: relative, attention: {bias: true}, attention_at: {\"0\": {qk_norm: true}, "
        "\"2-3\": {kind: fake, parts: 2}}}"}) {
    INFO(yaml);
    const auto options = decoder_options(yaml);
    const auto full = write_block(*options);
    CHECK(write_block(*decoder_options(to_yaml(full))) == full);
    auto usual = model_kind("decoder").options();
    const auto least = write_minimal(*options, *usual);
    CHECK(write_block(*decoder_options(least.entries.empty() ? "{}" : to_yaml(least))) == full);
  }
  auto usual = model_kind("decoder").options();
  const auto options = decoder_options("{position: {kind: rope, base: 10000.0}, layers: 2}");
  CHECK(to_flow(write_minimal(*options, *usual)) == "{layers: 2, position: rope}");
  CHECK_NOTHROW(nlohmann::json::parse(schema_of(*usual)));
}

}  // namespace
}  // namespace headlab::test_models
