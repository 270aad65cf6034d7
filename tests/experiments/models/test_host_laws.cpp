// Laws of every kind of heads in every model that hosts it: they are not lists of what goes where,
// so that a new kind or model is judged by them as it is.
#include <functional>

#include "core/torch.h"
#include "experiments/inference/translate.h"
#include "experiments/models/site_heads.h"
#include "experiments/models/stack_options.h"
#include "experiments/training/update.h"
#include "tests/catch.h"
#include "tests/models_testing.h"

namespace headlab::test_host_laws {
namespace {

using testing::relative_difference;

constexpr int64_t B = 4, T = 8, V = 11;
constexpr const char* kSize = "layers: 2, d_model: 16, heads: 4, d_ff: 32";

// Without those that other tests of this program have registered.
std::vector<std::string> kinds() {
  auto names = head_names();
  std::erase_if(names, [](const auto& name) { return head_kind(name).summary == "for tests"; });
  return names;
}

// One site of one model, where the kind stands; all others have mha.
struct Host {
  std::string name, model, site;
  std::string options;  // {} is the kind
  DataShape data;
  HeadDemands demands;  // of the site
};

std::vector<Host> hosts() {
  const DataShape text{.vocabulary = V, .context = T, .pad = 0};
  auto texts = text, pairs = text;
  texts.classes = 3;
  pairs.source_vocabulary = V, pairs.source_context = T, pairs.start = 2, pairs.end = 3;
  const DataShape images{.classes = 3, .channels = 1, .height = 8, .width = 8};
  const HeadDemands both{.bidirectional = true}, before{.causal = true}, memory{.cross = true};
  const std::string here = "attention: {kind: {}}";
  return {{"decoder", "decoder", "self", here, text, before},
          {"encoder", "encoder", "self", here, text, both},
          {"encoder of classes", "encoder", "self", "head: classes, " + here, texts, both},
          {"vit", "vit", "self", "patch: 4, " + here, images, both},
          {"encoder_self", "seq2seq", "encoder_self", "encoder: {" + here + "}", pairs, both},
          {"decoder_self", "seq2seq", "decoder_self", "decoder: {" + here + "}", pairs, before},
          {"cross", "seq2seq", "cross", "decoder: {cross: {kind: {}}}", pairs, memory}};
}

Tensor tokens() { return at::randint(4, V, {B, T}, at::kLong); }

// Examples of all lengths, where the model is told them.
Batch some_batch(const Host& host) {
  torch::manual_seed(11);
  Batch batch;
  const auto& data = host.data;
  if (data.channels > 0)
    batch.image = at::randn({B, data.channels, data.height, data.width}, at::kDouble);
  if (data.vocabulary > 0) batch.ids = tokens(), batch.length = at::tensor({8, 3, 5, 1}, at::kLong);
  if (data.source_vocabulary > 0)
    batch.source = tokens(), batch.source_length = at::tensor({2, 8, 1, 6}, at::kLong);
  if (data.classes > 0) {
    batch.targets = at::randint(data.classes, {B}, at::kLong);
  } else {
    const auto there = at::arange(T) < batch.length.unsqueeze(1);
    batch.targets = at::where(there, tokens(), kIgnored);
  }
  return batch;
}

// A kind in its host, its weights larger than fresh ones, so that attention is far from uniform.
struct Hosted {
  const Host& host;
  HeadTraits traits;
  std::shared_ptr<ModelOptions> options;  // null: refused
  std::string refusal;
  std::shared_ptr<Model> model;
  Batch batch;

  Hosted(const Host& in, const std::string& kind)
      : host(in), traits(head_kind(kind).options()->traits()), batch(some_batch(in)) {
    auto text = in.options;
    text.replace(text.find("{}"), 2, kind);
    try {
      options = model_kind(in.model).options();
      read_config(*options,
                  parse_config(std::string("{") + kSize + ", " + text + "}", "test.yaml"));
    } catch (const ConfigError& error) {
      refusal = error.what();
      options = nullptr;
      return;
    }
    torch::manual_seed(5);
    model = model_kind(in.model).make(*options, in.data);
    model->to(at::kDouble);
    model->eval();
    at::NoGradGuard no_grad;
    for (auto& p : model->parameters()) p.add_(at::randn_like(p), 0.2);
  }
  bool allowed() const {
    const auto& d = host.demands;
    return (!d.causal || traits.causal) && (!d.bidirectional || traits.bidirectional) &&
           (!d.cross || traits.cross);
  }
  // Of the rows that are there, [n,V].
  Tensor logits(const Batch& of) {
    const auto all = model->forward(of, {}).logits;
    if (all.dim() == 2) return all;
    const auto there = within_length(of.length, T, at::kCPU);
    return all.index({there});
  }
};

void not_promised() { SUCCEED("nothing of it here"); }

using Choice = std::function<bool(const std::string& kind, const Host& host)>;

// Runs `law` for every kind in every host that takes it, or those of them that are chosen.
template <class Law>
void for_every_host(Law law, const Choice& chosen = {}) {
  for (const auto& host : hosts())
    for (const auto& kind : kinds()) {
      if (chosen && !chosen(kind, host)) continue;
      // All of this is run again for each section: what is outside of it costs its square.
      DYNAMIC_SECTION(kind << " in " << host.name) {
        Hosted hosted(host, kind);
        hosted.options ? law(hosted) : not_promised();
      }
    }
}

TEST_CASE("a kind stands where its traits let it, and is refused by place elsewhere", "[laws]") {
  for (const auto& host : hosts())
    for (const auto& kind : kinds()) {
      const Hosted hosted(host, kind);
      INFO(kind << " in " << host.name << "\n" << hosted.refusal);
      CHECK((hosted.options != nullptr) == hosted.allowed());
      if (hosted.options) continue;
      CHECK_THAT(hosted.refusal, Catch::Contains("test.yaml:1:") && Catch::Contains(kind));
    }
}

void require_loss_falls(Hosted& hosted) {
  hosted.model->train();
  const Schedule steady{.kind = "constant", .lr = 1e-2};
  Updater updater(hosted.model, steady, {.weight_decay = 0}, {.seed = 3});
  double first = 0, last = 0;
  for (int64_t step = 0; step < 20; ++step) {
    const auto result = updater.step(step, {hosted.batch});
    last = result.losses.nll.item<double>();
    REQUIRE(std::isfinite(last));
    REQUIRE(std::isfinite(result.grad_norm.item<double>()));
    if (step == 0) first = last;
  }
  CHECK(last < 0.9 * first);
}

// Every kind in one host, and every host with one kind; the rest at night.
TEST_CASE("twenty updates on the same examples lower their loss", "[laws]") {
  for_every_host(require_loss_falls, [](const std::string& kind, const Host& host) {
    const bool causal = head_kind(kind).options()->traits().causal;
    return kind == "mha" || host.name == (causal ? "decoder" : "encoder");
  });
}

TEST_CASE("twenty updates on the same examples lower their loss in every host", "[.slow]") {
  for_every_host(require_loss_falls);
}

TEST_CASE("what stands in padding changes nothing", "[laws]") {
  for_every_host([](Hosted& hosted) {
    auto& batch = hosted.batch;
    if (batch.image.defined()) return not_promised();
    at::NoGradGuard no_grad;
    const auto before = hosted.logits(batch);
    auto other = batch;
    const auto refill = [](const Tensor& ids, const Tensor& length) {
      return at::where(within_length(length, T, at::kCPU), ids, tokens());
    };
    other.ids = refill(batch.ids, batch.length);
    if (batch.source.defined()) other.source = refill(batch.source, batch.source_length);
    REQUIRE_FALSE(at::equal(other.ids, batch.ids));
    CHECK(relative_difference(hosted.logits(other), before) < 1e-11);
  });
}

TEST_CASE("a model without some heads is the model with these masked", "[laws]") {
  for_every_host([](Hosted& hosted) {
    at::NoGradGuard no_grad;
    std::vector<HeadId> all = heads_where(alive_heads(*hosted.model)), gone;
    for (size_t n = 0; n < all.size(); ++n)
      if (all[n].site == hosted.host.site && n % 2 == 1) gone.push_back(all[n]);
    REQUIRE_FALSE(gone.empty());
    const auto before = hosted.logits(hosted.batch);
    remove_heads(*hosted.model, gone);
    const auto masked = hosted.logits(hosted.batch);
    CHECK(relative_difference(masked, before) > 1e-6);
    slice_heads(*hosted.model);
    CHECK(relative_difference(hosted.logits(hosted.batch), masked) < 1e-11);
  });
}

// Token after token.
Tensor decoded(Model& model, const Tensor& ids) {
  std::vector<LayerCache> caches;
  ModelContext context{.caches = &caches};
  std::vector<Tensor> logits;
  for (int64_t t = 0; t < T; ++t)
    logits.push_back(model.forward({ids.narrow(1, t, 1)}, context).logits);
  return at::cat(logits, 1);
}

TEST_CASE("a model that writes says the same with its cache and without", "[laws]") {
  for_every_host([](Hosted& hosted) {
    auto& model = *hosted.model;
    const bool causal = hosted.host.demands.causal;
    if (!model.writes() || (causal && !hosted.traits.decodes)) return not_promised();
    at::NoGradGuard no_grad;
    if (hosted.host.model == "decoder") {
      const auto whole = model.forward({hosted.batch.ids}, {}).logits;
      CHECK(relative_difference(decoded(model, hosted.batch.ids), whole) < 1e-11);
      return;
    }
    for (int64_t width : {1, 3}) {
      BeamOptions options{.width = width};
      const auto with = translate(model, hosted.batch, hosted.host.data, options, {});
      options.cache = false;
      const auto without = translate(model, hosted.batch, hosted.host.data, options, {});
      for (int64_t n = 0; n < B; ++n) {
        CHECK(with[n].ids == without[n].ids);
        CHECK(with[n].score == Approx(without[n].score).epsilon(1e-9));
      }
    }
  });
}

}  // namespace
}  // namespace headlab::test_host_laws
