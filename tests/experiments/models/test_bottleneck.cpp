// The head that gives back an example from one state, and who is refused without it.
#include <cmath>

#include "core/torch.h"
#include "experiments/models/bottleneck.h"
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_bottleneck {
using Catch::Contains;

namespace {

struct Plain : StackOptions {
  Plain() { d_model = 8, bias = true; }
};

// What a model of this kind and these options says of data of this shape.
std::string said_of(const char* kind, const std::string& yaml, const DataShape& data) {
  const auto options = std::dynamic_pointer_cast<ModelOptions>(model_kind(kind).options());
  read_config(*options, parse_config(yaml, "test.yaml"));
  std::string said;
  options->check_data(data, [&](const std::string& field, const std::string& what) {
    said += field + ": " + what + "\n";
  });
  return said;
}

}  // namespace

TEST_CASE("a bottleneck tells places apart by waves that are added to the state") {
  torch::manual_seed(3);
  const Plain options;
  Bottleneck head(options, 5);
  const auto state = at::randn({2, 8});
  const auto logits = head(state, 3);
  REQUIRE(logits.sizes() == at::IntArrayRef({2, 3, 5}));
  for (int64_t t = 0; t < 3; ++t) {
    auto x = state.clone();
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(t) * std::pow(10000.0, -static_cast<double>(i) / 3);
      x.select(1, i) += std::sin(angle);
      x.select(1, 4 + i) += std::cos(angle);
    }
    const auto parameters = head->named_parameters();
    for (const std::string n : {"0", "1", "2"}) {
      x = at::layer_norm(x, {8}, parameters["norm" + n + ".weight"],
                         parameters["norm" + n + ".bias"], options.norm_eps);
      x = at::linear(x, parameters["linear" + n + ".weight"], parameters["linear" + n + ".bias"]);
      if (n != "2") x = at::gelu(x);
    }
    CHECK(at::allclose(x, logits.select(1, t), 1e-5, 1e-6));
  }
  CHECK(head->flops_per_token() == 2 * (64 + 64 + 40));
}

TEST_CASE("a decoder with a bottleneck gives every place the state of the last") {
  const auto model = testing::small_decoder("{layers: 1, d_model: 16, heads: 2, head: bottleneck}");
  const auto ids = testing::some_ids(2, 12);
  const auto logits = testing::logits_of(*model, ids);
  REQUIRE(logits.sizes() == at::IntArrayRef({2, 12, 29}));
  for (const int64_t changed : {0, 11}) {
    auto other = ids.clone();
    other.select(1, changed).add_(1).remainder_(29);
    const auto moved = (testing::logits_of(*model, other) - logits).abs().amax(-1);  // [B,T]
    CHECK(moved.min().item<double>() > 0);
  }
  CHECK(model->sees_whole_example());
  CHECK_FALSE(model->writes());
  CHECK_FALSE(model->unembedding().defined());
  for (const auto& item : model->named_parameters()) CHECK(item.key() != "norm.weight");
  CHECK(testing::complaint("{d_model: 18, heads: 2, head: bottleneck}").empty());
  CHECK_THAT(testing::complaint("{d_model: 9, heads: 3, head: bottleneck}"),
             Contains("d_model: must be even"));
}

TEST_CASE("data that ask of each place its own id want a bottleneck, and only they") {
  const DataShape ids{.vocabulary = 9, .context = 8, .targets_are_ids = true};
  const DataShape next{.vocabulary = 9, .context = 8, .targets_follow = true};
  CHECK_THAT(said_of("decoder", "{}", ids), Contains("head: must be bottleneck"));
  CHECK(said_of("decoder", "{head: bottleneck}", ids).empty());
  CHECK_THAT(said_of("decoder", "{head: bottleneck}", next), Contains("use head: tokens"));
  CHECK_THAT(said_of("encoder", "{}", ids), Contains("an encoder would copy"));
}

TEST_CASE("a decoder spares the logits that few targets need, where asked to") {
  const auto made = [&](bool targets_follow) {
    torch::manual_seed(5);
    const auto options = testing::decoder_options("{layers: 1, d_model: 16, heads: 2}");
    return model_kind("decoder").make(
        *options, {.vocabulary = 29, .context = 12, .targets_follow = targets_follow});
  };
  Batch batch{.ids = testing::some_ids(2, 12)};
  batch.targets = at::full({2, 12}, kIgnored, at::kLong);
  batch.targets[0][3] = 1, batch.targets[1][7] = 2;
  const auto model = made(false);
  const auto all = model->forward(batch, {}).logits;
  const auto few = model->forward(batch, {.scored_only = true}).logits;
  REQUIRE(few.sizes() == at::IntArrayRef({2, 29}));
  CHECK(at::allclose(few, at::stack({all[0][3], all[1][7]}), 1e-5, 1e-6));
  CHECK(made(true)->forward(batch, {.scored_only = true}).logits.dim() == 3);
  batch.targets.select(1, 5).fill_(1), batch.targets.select(1, 6).fill_(1);
  batch.targets.select(1, 8).fill_(1);
  CHECK(model->forward(batch, {.scored_only = true}).logits.dim() == 3);
}

}  // namespace headlab::test_bottleneck
