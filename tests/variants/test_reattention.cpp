// Re-attention: both norms against torch's, the statistics of a batch, reductions, options.
#include "experiments/analysis/maps/patterns.h"
#include "tests/layers_testing.h"

namespace headlab::test_reattention {
using namespace testing;

namespace {

Tensor buffer(AttentionHeads& heads, const char* name) { return heads.named_buffers()[name]; }

// Running statistics like those of a trained layer.
std::shared_ptr<AttentionHeads> batch_layer(const HeadShape& shape,
                                            const std::string& options = "") {
  auto heads = make_layer("reattention", shape, ", norm: batch" + options);
  buffer(*heads, "norm.running_mean").copy_(random({shape.heads}) * 0.1);
  buffer(*heads, "norm.running_var").copy_(random({shape.heads}).square() + 0.01);
  return heads;
}

// The weights before the mixing, and mixed by theta, of a layer without other options.
Tensor softmax_of(const AttentionHeads& heads, const Tensor& x, const Tensor& allowed) {
  const auto p = heads.named_parameters();
  const auto split = [&](const char* name) { return split_heads(at::linear(x, p[name]), 4); };
  const auto z = at::matmul(split("q.weight"), split("k.weight").transpose(2, 3)) / std::sqrt(6.);
  return masked_softmax(z, allowed);
}
Tensor mixed(const AttentionHeads& heads, const Tensor& softmax) {
  const auto p = heads.named_parameters();
  auto r = at::einsum("bhij,hg->bgij", {softmax, p["theta"]});
  if (const auto* bias = p.find("theta_bias")) r = r + bias->view({-1, 1, 1});
  return r;
}

}  // namespace

TEST_CASE("the layer norm is over the heads of a pair", "[reattention]") {
  const auto heads = make_layer("reattention", small_shape(), ", theta_bias: true");
  const auto x = random({kBatch, kTokens, 20});
  const auto p = heads->named_parameters();
  const auto r = mixed(*heads, softmax_of(*heads, x, {}));
  const auto normed =
      at::layer_norm(r.permute({0, 2, 3, 1}), {4}, p["norm.weight"], p["norm.bias"], 1e-5)
          .permute({0, 3, 1, 2});
  REQUIRE(difference(map_of(*heads, x, {}), normed) < 1e-11);
}

TEST_CASE("the batch norm is torch's where nothing is hidden", "[reattention]") {
  const auto heads = batch_layer(small_shape(), ", theta_bias: true");
  const auto x = random({kBatch, kTokens, 20});
  const auto p = heads->named_parameters();
  const auto r = mixed(*heads, softmax_of(*heads, x, {}));
  const auto mean = buffer(*heads, "norm.running_mean").clone();
  const auto var = buffer(*heads, "norm.running_var").clone();
  const auto torch_norm = [&](bool training) {
    return at::batch_norm(r, p["norm.weight"], p["norm.bias"], mean, var, training, 0.1, 1e-5,
                          false);
  };
  REQUIRE(difference(map_of(*heads, x, {}), torch_norm(false)) < 1e-11);
  REQUIRE(difference(buffer(*heads, "norm.running_mean"), mean) == 0);  // evaluation learns nothing
  heads->train();
  REQUIRE(difference(map_of(*heads, x, {}), torch_norm(true)) < 1e-11);
  heads->after_step();
  REQUIRE(difference(buffer(*heads, "norm.running_mean"), mean) < 1e-12);
  REQUIRE(difference(buffer(*heads, "norm.running_var"), var) < 1e-12);
}

TEST_CASE("statistics of a batch count allowed pairs of real queries only", "[reattention]") {
  const auto heads = batch_layer(small_shape());
  heads->train();
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  ctx.mask.allowed = at::rand({kBatch, 4, kTokens, kTokens}) < 0.7;
  ctx.mask.query_length = at::tensor({7, 4}, at::kLong);
  const auto allowed = allowed_keys(ctx.mask, kTokens, kTokens, at::kCPU);
  const auto r = mixed(*heads, softmax_of(*heads, x, allowed)).detach();
  auto counted = allowed.clone();
  counted[1].narrow(1, 4, 3).fill_(false);
  const auto before = buffer(*heads, "norm.running_mean").clone();
  const auto before_var = buffer(*heads, "norm.running_var").clone();
  const auto map = map_of(*heads, x, ctx);
  heads->after_step();
  const auto p = heads->named_parameters();
  for (int64_t h = 0; h < 4; ++h) {
    const auto values = r.select(1, h).masked_select(counted.select(1, h));
    const auto mean = values.mean(), var = values.var(/*unbiased=*/false);
    const auto normed =
        (r.select(1, h) - mean) / (var + 1e-5).sqrt() * p["norm.weight"][h] + p["norm.bias"][h];
    REQUIRE(difference(map.select(1, h),
                       normed.masked_fill(allowed.select(1, h).logical_not(), 0)) < 1e-11);
    REQUIRE(buffer(*heads, "norm.running_mean")[h].item<double>() ==
            Approx(0.9 * before[h].item<double>() + 0.1 * mean.item<double>()));
    REQUIRE(buffer(*heads, "norm.running_var")[h].item<double>() ==
            Approx(0.9 * before_var[h].item<double>() + 0.1 * values.var(true).item<double>()));
  }
  // What stands in the padding has no say in anything that counts.
  auto other = x.clone();
  other[1].narrow(0, 4, 3).normal_();
  ctx.mask.key_length = ctx.mask.query_length;
  const auto y = heads->forward(x, ctx).y, y_other = heads->forward(other, ctx).y;
  REQUIRE(difference(y[0], y_other[0]) < 1e-12);
  REQUIRE(difference(y[1].narrow(0, 0, 4), y_other[1].narrow(0, 0, 4)) < 1e-12);
}

TEST_CASE("running statistics stay where there is nothing to count", "[reattention]") {
  const auto heads = batch_layer(small_shape());
  heads->train();
  const auto mean = buffer(*heads, "norm.running_mean").clone();
  const auto var = buffer(*heads, "norm.running_var").clone();
  auto x = random({1, 1, 20}).requires_grad_();  // one pair has no unbiased variance
  auto y = heads->forward(x).y;
  y.sum().backward();
  REQUIRE(x.grad().isfinite().all().item<bool>());
  heads->after_step();
  REQUIRE(difference(buffer(*heads, "norm.running_mean"), mean) == 0);
  REQUIRE(difference(buffer(*heads, "norm.running_var"), var) == 0);
  HeadContext ctx;
  ctx.mask.allowed = at::zeros({1, 4, 7, 7}, at::kBool);
  ctx.mask.allowed[0][2].fill_(true);  // only head 2 sees anything
  y = heads->forward(random({1, 7, 20}), ctx).y;
  REQUIRE(y.isfinite().all().item<bool>());
  heads->after_step();
  const auto moved = buffer(*heads, "norm.running_mean") != mean;
  REQUIRE(at::equal(moved, at::arange(4) == 2));
}

TEST_CASE("running statistics go on once an update, by all pairs of its passes", "[reattention]") {
  const auto whole = batch_layer(small_shape()), parts = batch_layer(small_shape());
  copy_weights(parts, whole);
  for (const auto& heads : {whole, parts}) heads->train();
  for (const char* name : {"norm.running_mean", "norm.running_var"})
    buffer(*parts, name).copy_(buffer(*whole, name));
  const auto mean = buffer(*parts, "norm.running_mean").clone();
  const auto at_once = random({1, 7, 20}), later = random({1, 7, 20});
  for (const auto& x : {at_once, later}) parts->forward(x, causal());
  {
    at::NoGradGuard no_grad;  // a pass to measure
    parts->forward(random({1, 7, 20}), causal());
  }
  parts->eval();
  parts->forward(random({1, 7, 20}), causal());
  REQUIRE(difference(buffer(*parts, "norm.running_mean"), mean) == 0);
  whole->forward(at::cat({at_once, later}), causal());
  for (const auto& heads : {whole, parts}) heads->after_step();
  REQUIRE(difference(buffer(*parts, "norm.running_mean"), mean) > 1e-6);
  for (const char* name : {"norm.running_mean", "norm.running_var"})
    REQUIRE(difference(buffer(*parts, name), buffer(*whole, name)) < 1e-12);
  const auto moved = buffer(*parts, "norm.running_mean").clone();
  parts->after_step();  // nothing was counted since
  REQUIRE(at::equal(buffer(*parts, "norm.running_mean"), moved));
}

TEST_CASE("masked heads keep out of a batch's statistics and keep their own", "[reattention]") {
  const auto heads = batch_layer(small_shape(), ", theta_bias: true");
  heads->train();
  const auto x = random({kBatch, kTokens, 20});
  const auto mean = buffer(*heads, "norm.running_mean").clone();
  heads->mask_heads({1, 2});
  const auto sliced = heads->slice();
  REQUIRE(difference(heads->forward(x, masked_context()).y, sliced->forward(x, causal()).y) > 1e-6);
  heads->after_step();
  const auto again = heads->slice();
  const auto ctx = masked_context();
  REQUIRE(difference(heads->forward(x, ctx).y, again->forward(x, ctx).y) < 1e-12);
  heads->after_step(), again->after_step();
  for (const char* name : {"norm.running_mean", "norm.running_var"})
    REQUIRE(difference(buffer(*heads, name).index_select(0, at::tensor({0, 3})),
                       buffer(*again, name)) < 1e-12);
  for (int64_t gone : {1, 2})
    REQUIRE(at::equal(buffer(*heads, "norm.running_mean")[gone], mean[gone]));
}

TEST_CASE("without mixing and with a norm that changes nothing it is multi-head attention",
          "[reattention]") {
  const auto mha = make_layer("mha", small_shape(4, 2), ", bias: true, qk_norm: true");
  const auto heads =
      make_layer("reattention", small_shape(4, 2), ", bias: true, qk_norm: true, norm: batch");
  copy_weights(heads, mha);
  set(heads, "theta", at::eye(4));
  set(heads, "norm.weight", at::ones({4}));
  set(heads, "norm.bias", at::zeros({4}));
  buffer(*heads, "norm.running_var").fill_(1 - 1e-5);
  const auto x = random({kBatch, kTokens, 20});
  const Rotary rotary;
  auto ctx = masked_context();
  ctx.rotary = &rotary;
  REQUIRE(difference(heads->forward(x, ctx).y, mha->forward(x, ctx).y) < 1e-12);
  REQUIRE(difference(map_of(*heads, x, ctx), map_of(*mha, x, ctx)) < 1e-12);
}

TEST_CASE("a fresh layer mixes little and norms to one", "[reattention]") {
  torch::manual_seed(3);
  const auto& kind = head_kind("reattention");
  const auto heads = kind.make(small_shape(32, 32), *kind.options());
  const auto p = heads->named_parameters();
  const auto noise = p["theta"] - at::eye(32);
  REQUIRE(noise.std().item<double>() == Approx(0.02).epsilon(0.1));
  REQUIRE(noise.mean().abs().item<double>() < 0.003);
  REQUIRE(at::equal(p["norm.weight"], at::ones({32})));
  REQUIRE(at::equal(p["norm.bias"], at::zeros({32})));
  REQUIRE(heads->named_buffers().find("norm.running_mean") == nullptr);
}

TEST_CASE("a constant a row of theta passes the layer norm unseen", "[reattention]") {
  const auto heads = make_layer("reattention", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto map = map_of(*heads, x, causal());
  set(heads, "theta", heads->named_parameters()["theta"] + random({4, 1}));
  REQUIRE(difference(map_of(*heads, x, causal()), map) < 1e-11);
}

TEST_CASE("one head alone says its norm's bias", "[reattention]") {
  const auto heads = make_layer("reattention", small_shape(1, 1));
  const auto map = map_of(*heads, random({kBatch, kTokens, 20}), {});
  REQUIRE(difference(map, heads->named_parameters()["norm.bias"].expand_as(map)) == 0);
  // So does the last one left.
  const auto four = make_layer("reattention", small_shape());
  four->mask_heads({0, 1, 3});
  const auto left = map_of(*four->slice(), random({kBatch, kTokens, 20}), {});
  REQUIRE(difference(left, four->named_parameters()["norm.bias"][2].expand_as(left)) == 0);
}

TEST_CASE("a single pair has weights that do not depend on x", "[reattention]") {
  const auto heads = make_layer("reattention", small_shape(), ", theta_bias: true");
  REQUIRE(difference(map_of(*heads, random({1, 1, 20}), {}),
                     map_of(*heads, random({1, 1, 20}), {})) < 1e-12);
}

TEST_CASE("in a batch's statistics the bias of theta has no effect", "[reattention]") {
  const auto heads = batch_layer(small_shape(), ", theta_bias: true");
  heads->train();
  const auto x = random({kBatch, kTokens, 20});
  const auto y = heads->forward(x, causal()).y;
  (y * random(y.sizes())).sum().backward();
  REQUIRE(heads->named_parameters()["theta_bias"].grad().abs().max().item<double>() < 1e-11);
  set(heads, "theta_bias", random({4}));
  REQUIRE(difference(heads->forward(x, causal()).y, y) < 1e-11);
}

TEST_CASE("the weights of re-attention may be scaled like the scores", "[reattention]") {
  const auto x = random({kBatch, kTokens, 20});
  for (const char* norm : {", norm: layer", ", norm: batch"})
    for (const char* scale : {"", ", scale: 0.7"}) {
      const auto options = std::string(norm) + scale;
      const auto plain = make_layer("reattention", small_shape(), options);
      const auto scaled =
          make_layer("reattention", small_shape(), options + ", transform_scale: true");
      const double factor = *scale ? 0.7 : 1 / std::sqrt(6.);
      REQUIRE(difference(map_of(*scaled, x, {}), map_of(*plain, x, {}) * factor) < 1e-12);
    }
}

TEST_CASE("gradients pass through the statistics of a batch", "[reattention]") {
  const auto heads = batch_layer(small_shape(), ", theta_bias: true");
  heads->train();
  require_gradients(*heads);
}

TEST_CASE("with a batch norm re-attention decodes in evaluation only", "[reattention]") {
  const auto x = random({kBatch, kTokens, 20});
  LayerCache cache;
  auto ctx = causal();
  ctx.cache = &cache;
  const auto heads = batch_layer(small_shape());
  heads->train();
  REQUIRE_THROWS_WITH(heads->forward(x, ctx), Catch::Contains("decodes in eval mode only"));
  const auto layer = make_layer("reattention", small_shape());
  layer->train();
  REQUIRE_NOTHROW(layer->forward(x, ctx));
}

TEST_CASE("statistics of re-attention are of both maps", "[reattention]") {
  const auto heads = make_layer("reattention", small_shape());
  const auto x = random({kBatch, kTokens, 20});
  const auto values = statistics_of(*heads, x, causal());
  const auto allowed = allowed_keys(causal().mask, kTokens, kTokens, at::kCPU);
  const auto p = softmax_of(*heads, x, allowed).detach();
  HeadSums sums(4);
  MapContext context;
  context.allowed = allowed;
  context.causal = true;
  add_patterns(sums, p, context);
  const auto want = head_values(sums);
  for (const char* name : {"entropy", "participation_ratio", "signed_offset", "js"})
    for (size_t n = 0; n < want.at(name).size(); ++n)
      REQUIRE(values.at(name)[n] == Approx(want.at(name)[n]).margin(1e-9));
  const auto a = map_of(*heads, x, causal());
  for (int64_t h = 0; h < 4; ++h) {
    REQUIRE(values.at("composed_row_sum")[h] ==
            Approx(a.select(1, h).sum(-1).mean().item<double>()));
    REQUIRE(values.at("composed_negative_mass")[h] ==
            Approx(-a.select(1, h).clamp_max(0).sum(-1).mean().item<double>()));
  }
  const auto theta = heads->named_parameters()["theta"].detach().abs();
  REQUIRE(values.at("theta_off_diagonal") ==
          std::vector<double>{((theta.sum() - theta.trace()) / theta.sum()).item<double>()});
}

TEST_CASE("the likeness of successive layers is the cosine of their rows", "[reattention]") {
  auto shape = small_shape();
  const auto second = make_layer("reattention", shape, "", 1);
  shape.layer = 0;
  const auto first = make_layer("reattention", shape, "", 2);
  const auto x = random({kBatch, kTokens, 20});
  auto ctx = causal();
  HeadProbe probe;
  probe.statistics = probe.maps = true;
  ctx.observer = &probe;
  const auto likeness = [&] {
    probe.reset();
    first->forward(x, ctx);
    second->forward(x, ctx);
    REQUIRE(probe.values(0).count("layer_cosine") == 0);
    return probe.values(1).at("layer_cosine");
  };
  const auto before = likeness();
  const auto cosine =
      at::cosine_similarity(probe.layer_maps().at(0), probe.layer_maps().at(1), -1, 0)
          .mean(at::IntArrayRef({0, 2}));
  for (int64_t h = 0; h < 4; ++h) REQUIRE(before[h] == Approx(cosine[h].item<double>()));

  // Heads that are gone in one of the layers have none, by original index.
  first->mask_heads({1});
  second->mask_heads({3});
  const auto masked = likeness();
  const auto sliced = second->slice();
  probe.reset();
  first->slice()->forward(x, ctx);
  sliced->forward(x, ctx);
  const auto cut = probe.values(1).at("layer_cosine");
  for (int64_t h = 0; h < 4; ++h) {
    INFO(h);
    REQUIRE(std::isnan(masked[h]) == (h == 1 || h == 3));
    REQUIRE((std::isnan(masked[h]) ? std::isnan(cut[h]) : cut[h] == Approx(masked[h])));
  }
}

TEST_CASE("wrong options of re-attention have a place", "[reattention]") {
  REQUIRE_THROWS_WITH(
      make_layer("reattention", small_shape(), ", norm: group"),
      Catch::Contains("test:1:") && Catch::Contains("attention.norm") && Catch::Contains("layer"));
  REQUIRE_THROWS_WITH(make_layer("reattention", small_shape(), ", theta_biases: true"),
                      Catch::Contains("did you mean 'theta_bias'"));
}

}  // namespace headlab::test_reattention
