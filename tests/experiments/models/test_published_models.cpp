// GPT-2 and LLaMA of the authors' code.
#include "experiments/cases/judge.h"
#include "experiments/data/task.h"
#include "tests/catch.h"
#include "tests/hugging_face.h"
#include "tests/models_testing.h"

namespace headlab::test_published_models {
namespace {

// Everything a published file expects of a forward and a backward pass.
NamedTensors computed(Model& model, const NamedTensors& golden) {
  NamedTensors got;
  HiddenStates states;
  HeadProbe probe;
  probe.maps = true;
  ModelContext ctx;
  ctx.hidden = &states;
  ctx.observer = &probe;
  const auto& targets = golden.at("in.targets");
  const auto logits = model.forward({golden.at("in.ids")}, ctx).logits;
  const auto loss = cross_entropy_sum(logits, targets) / scored_targets(targets);
  loss.backward();
  got["out.logits"] = logits;
  got["out.loss"] = loss;
  const auto& hidden = states.at("");
  for (size_t l = 0; l < hidden.size(); ++l) got[fmt::format("out.hidden.{}", l)] = hidden[l];
  for (const auto& [key, map] : probe.layer_maps())
    got[fmt::format("out.attention.{}", key.layer)] = map;
  std::vector<Tensor> gradients;
  for (const auto& item : model.named_parameters()) {
    got["grad." + item.key()] = item.value().grad();
    gradients.push_back(item.value().grad().flatten());
  }
  got["out.grad_norm"] = at::cat(gradients).norm();
  return got;
}

TEST_CASE("GPT-2 and LLaMA of the authors' code: states, maps, loss, gradients, greedy ids") {
  for (const char* name : {"gpt2", "llama_gqa", "llama_tied"}) {
    INFO(name);
    const auto folder = std::filesystem::path(build::kSourceDir) / "tests/golden/models" / name;
    const testing::PublishedDecoder published(folder);
    std::map<std::string, std::string> metadata;
    const auto golden = read_tensors(folder / "golden.safetensors", &metadata);
    auto model = published.build(golden.at("out.logits").scalar_type());
    const auto got = computed(*model, golden);
    NamedTensors want;
    for (const auto& [key, value] : got)
      want[key] = key.starts_with("grad.") ? published.find(key.substr(5), golden, "grad.")
                                           : golden.at(key);
    CHECK(want.size() > 25);
    const Tolerance tolerance{std::stod(metadata["rtol"]), std::stod(metadata["atol"])};
    for (const auto& verdict : judge(got, want, tolerance)) {
      INFO(verdict_line(verdict));
      CHECK(verdict.pass);
    }

    at::NoGradGuard no_grad;
    std::vector<LayerCache> caches;
    ModelContext ctx;
    ctx.caches = &caches;
    const auto& greedy = golden.at("out.greedy.ids");
    auto ids = greedy.narrow(1, 0, 5), next = ids;
    while (ids.size(1) < greedy.size(1)) {
      next = model->forward({next}, ctx).logits.select(1, -1).argmax(-1, true);
      ids = at::cat({ids, next}, 1);
    }
    CHECK(at::equal(ids, greedy));
  }
}

}  // namespace
}  // namespace headlab::test_published_models
