// AdamW, schedules, and whole updates: against plain formulas and a training of nanoGPT's own code.
#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.h"
#include "experiments/cases/train_case.h"
#include "tests/catch.h"
#include "tests/models_testing.h"
#include "tests/scratch.h"

namespace headlab::test_optimizer {
namespace {

using testing::difference;
using testing::small_decoder;

const std::filesystem::path kGolden = std::filesystem::path(build::kSourceDir) / "tests/golden";

TEST_CASE("schedules give the rates of nanoGPT, fairseq and transformers") {
  const auto file = nlohmann::json::parse(std::ifstream(kGolden / "schedules.json"));
  REQUIRE(file["cases"].size() == 4);
  for (const auto& c : file["cases"]) {
    Schedule schedule;
    schedule.kind = c["kind"];
    schedule.lr = c["lr"];
    schedule.warmup = c["warmup"];
    schedule.min_lr = c.value("min_lr", 0.0);
    schedule.init_lr = c.value("init_lr", 0.0);
    schedule.decay = c.value("decay", c.value("total", int64_t{1}));
    for (size_t i = 0; i < c["steps"].size(); ++i) {
      INFO(c["source"] << ", step " << c["steps"][i]);
      CHECK(schedule.at(c["steps"][i]) == Approx(c["values"][i].get<double>()).epsilon(1e-12));
    }
  }
}

TEST_CASE("noam peaks at (d_model warmup)^-0.5, a constant rate stays after its warm-up") {
  Schedule noam{.kind = "noam", .lr = 5, .warmup = 400, .d_model = 64};
  CHECK(noam.at(399) == Approx(1 / std::sqrt(64.0 * 400)));
  CHECK(noam.at(0) == Approx(1 / std::sqrt(64.0) * std::pow(400, -1.5)));
  CHECK(noam.at(1599) == Approx(0.5 / std::sqrt(64.0 * 400)));
  Schedule constant{.kind = "constant", .lr = 2, .warmup = 3};
  CHECK(constant.at(0) == 0.5);
  CHECK(constant.at(3) == 2);
  CHECK(constant.at(100000) == 2);
  Schedule short_run{.kind = "cosine", .lr = 1, .min_lr = 0.25, .warmup = 4, .decay = 4};
  CHECK(short_run.at(4) == 0.25);
}

// Parameters of every group.
struct Plain : torch::nn::Module {
  Plain() {
    torch::manual_seed(2);
    matrix = register_parameter("matrix", at::randn({3, 4}, at::kDouble));
    vector = register_parameter("vector", at::randn({5}, at::kDouble));
    gate = register_parameter("gate", at::randn({2, 2}, at::kDouble));
    multiplier = register_parameter("multiplier", at::zeros({2}, at::kDouble));
    unused = register_parameter("unused", at::randn({2}, at::kDouble));
  }
  ParameterGroups groups() const { return {.gates = {gate}, .multipliers = {multiplier}}; }
  void pull(int64_t step) {  // gradients that change from step to step
    const auto wave = [&](const Tensor& p, double phase) {
      auto n = at::arange(p.numel(), at::kDouble).view_as(p);
      p.mutable_grad() = (n * 0.7 + phase + static_cast<double>(step)).sin();
    };
    wave(matrix, 0), wave(vector, 1), wave(gate, 2), wave(multiplier, 3);
  }
  Tensor matrix, vector, gate, multiplier, unused;
};

const AdamW::Settings kSettings{.beta1 = 0.8,
                                .beta2 = 0.95,
                                .eps = 1e-6,
                                .weight_decay = 0.3,
                                .gate_lr = 0.07,
                                .multiplier_lr = 0.05};

TEST_CASE("a schedule whose peak a training never reaches is told, any other is not") {
  const auto told = [](const std::string& kind, int64_t warmup, int64_t steps, int64_t decay) {
    return unreached_rate({.kind = kind, .warmup = warmup, .decay = decay, .d_model = 16}, steps);
  };
  for (const auto& kind : schedule_names()) {
    INFO(kind);
    CHECK(told(kind, 10, 100, 100).empty());
    CHECK(told(kind, 10, 11, 100).empty());
    CHECK_THAT(told(kind, 10, 9, 100), Catch::Contains("is never reached"));
  }
  for (const std::string kind : {"cosine", "linear", "constant"}) {
    CHECK(told(kind, 0, 1, 1).empty());
    CHECK_THAT(told(kind, 100, 50, 50),
               Catch::Contains("train.lr 0.001 is never reached, the highest rate is 0.00049") &&
                   Catch::Contains("train.warmup takes 100 updates, the run ends after 50"));
  }
  CHECK_THAT(told("cosine", 100, 200, 50), Catch::Contains("train.decay_steps ends after 50"));
  CHECK(told("noam", 10, 10, 10).empty());  // its last update of warmup is the peak
}

TEST_CASE("AdamW follows its formula in every group, what has no gradient stays") {
  Plain model;
  AdamW optimizer(model, model.groups(), kSettings);
  struct Reference {
    Tensor w, m, v;
    double decay, sign, fixed_lr;
  };
  std::vector<Tensor*> parameters{&model.matrix, &model.vector, &model.gate, &model.multiplier};
  std::vector<Reference> references;
  const double decays[] = {0.3, 0, 0, 0}, signs[] = {-1, -1, -1, 1}, rates[] = {0, 0, 0.07, 0.05};
  for (int i = 0; i < 4; ++i) {
    auto w = parameters[i]->detach().clone();
    references.push_back({w, at::zeros_like(w), at::zeros_like(w), decays[i], signs[i], rates[i]});
  }
  const auto unused = model.unused.detach().clone();
  for (int64_t step = 0; step < 5; ++step) {
    const double schedule_lr = 0.02 / static_cast<double>(step + 1),
                 n = static_cast<double>(step + 1);
    model.pull(step);
    for (int i = 0; i < 4; ++i) {
      auto& r = references[i];
      const auto g = parameters[i]->grad();
      const double lr = r.fixed_lr > 0 ? r.fixed_lr : schedule_lr;
      r.m = 0.8 * r.m + 0.2 * g;
      r.v = 0.95 * r.v + 0.05 * g * g;
      r.w = r.w * (1 - lr * r.decay) + r.sign * lr * (r.m / (1 - std::pow(0.8, n))) /
                                           ((r.v / (1 - std::pow(0.95, n))).sqrt() + 1e-6);
    }
    optimizer.step(schedule_lr);
    optimizer.zero_grad();
    for (int i = 0; i < 4; ++i) {
      INFO("step " << step << ", parameter " << i);
      CHECK(difference(*parameters[i], references[i].w) < 1e-12);
      CHECK_FALSE(parameters[i]->grad().defined());
    }
  }
  CHECK(at::equal(model.unused, unused));
  CHECK(optimizer.state().at("step.unused").item<double>() == 0);
  CHECK(optimizer.state().at("step.matrix").item<double>() == 5);
}

TEST_CASE("the gradient norm is over all parameters, and clipping scales them to the limit") {
  Plain model;
  AdamW optimizer(model, model.groups(), kSettings);
  CHECK(optimizer.gradient_norm().item<double>() == 0);
  model.pull(0);
  const auto before = model.matrix.grad().clone();
  const auto flat = at::cat({model.matrix.grad().flatten(), model.vector.grad(),
                             model.gate.grad().flatten(), model.multiplier.grad()});
  const auto norm = optimizer.gradient_norm();
  CHECK(norm.item<double>() == Approx(flat.norm().item<double>()).epsilon(1e-14));
  optimizer.clip(norm, 1e6);
  CHECK(at::equal(model.matrix.grad(), before));
  optimizer.clip(norm, 0.5);
  const double factor = 0.5 / (norm.item<double>() + 1e-6);
  CHECK(difference(model.matrix.grad(), before * factor) < 1e-15);
  CHECK(optimizer.gradient_norm().item<double>() == Approx(0.5).epsilon(1e-5));
}

TEST_CASE("a parameter that is registered under two names counts once") {
  Plain model;
  auto outer = std::make_shared<torch::nn::Module>();
  outer->register_parameter("first", model.vector);
  outer->register_parameter("second", model.vector);
  AdamW optimizer(*outer, {}, kSettings);
  model.pull(0);
  CHECK(optimizer.gradient_norm().item<double>() ==
        Approx(model.vector.grad().norm().item<double>()));
  CHECK(optimizer.state().size() == 3);
}

TEST_CASE("an optimiser that loads a state goes on as the one that saved it, bit for bit") {
  Plain whole, broken;
  AdamW first(whole, whole.groups(), kSettings);
  auto half = std::make_unique<AdamW>(broken, broken.groups(), kSettings);
  for (int64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      NamedTensors saved;
      for (const auto& [name, tensor] : half->state()) saved[name] = tensor.clone();
      half = std::make_unique<AdamW>(broken, broken.groups(), kSettings);
      half->load_state(saved);
    }
    whole.pull(step);
    broken.pull(step);
    first.step(0.01);
    half->step(0.01);
  }
  for (const auto& item : whole.named_parameters())
    CHECK(at::equal(item.value(), broken.named_parameters()[item.key()]));

  auto state = first.state();
  state["exp_avg.matrix"] = at::zeros({4, 3});
  CHECK_THROWS_WITH(half->load_state(state),
                    "the optimizer's state has exp_avg.matrix with shape "
                    "[4, 3], the model wants [3, 4]");
  state = first.state();
  state.erase("step.gate");
  state["step.other"] = at::zeros({});
  CHECK_THROWS_AS(half->load_state(state), RunError);
}

TEST_CASE("a training of nanoGPT's own code is reproduced in float64 and float32") {
  at::globalContext().setDeterministicAlgorithms(false, false);
  for (auto type : {at::kDouble, at::kFloat}) {
    TrainCase training(kGolden / "nanogpt/train.safetensors", {at::kCPU}, type);
    CHECK(training.tolerance().rtol == (type == at::kDouble ? 1e-9 : 2e-4));
    const auto verdicts = judge(training.compute(), training.expected(), training.tolerance());
    CHECK(verdicts.size() == 43);
    for (const auto& verdict : verdicts) {
      INFO(verdict_line(verdict));
      CHECK(verdict.pass);
    }
  }
}

TEST_CASE("a training file that lacks a weight, or holds one too many, is refused by name") {
  const Scratch scratch;
  const auto path = scratch / "case.safetensors";
  std::map<std::string, std::string> metadata;
  const auto whole = read_tensors(kGolden / "nanogpt/train.safetensors", &metadata);
  const auto complaint = [&](const NamedTensors& tensors) -> std::string {
    write_tensors(path, tensors, metadata);
    try {
      TrainCase(path, {at::kCPU});
    } catch (const DataError& e) {
      return e.what();
    }
    return "";
  };
  auto tensors = whole;
  tensors.erase("w.blocks.1.mlp.up.weight");
  CHECK(complaint(tensors) == path.string() + ": w.blocks.1.mlp.up.weight is missing");
  tensors = whole;
  tensors["w.norm.bias"] = at::zeros({16}, at::kDouble);
  CHECK(complaint(tensors) == path.string() + ": the model does not know the tensor w.norm.bias");
  metadata["train"] = "{\"gradient_accumulation_steps\": 2}";
  CHECK(complaint(whole) == path.string() + ": in.ids has 1 micro-batches, the settings say 2");
  metadata.erase("headlab_train");
  CHECK_THAT(complaint(whole), Catch::Contains("not a training file"));
}

Batch some_batch(int64_t B, int64_t T) {
  torch::manual_seed(8);
  Batch batch{at::randint(29, {B, T}, at::kLong), at::randint(29, {B, T}, at::kLong)};
  batch.targets.slice(0, 0, B / 2).slice(1, 0, 3).fill_(kIgnored);  // halves score differently
  return batch;
}

std::vector<Batch> split(const Batch& whole, int64_t parts) {
  std::vector<Batch> batches;
  for (int64_t i = 0; i < parts; ++i)
    batches.push_back({whole.ids.chunk(parts)[i], whole.targets.chunk(parts)[i]});
  return batches;
}

std::unique_ptr<Updater> updater(std::shared_ptr<Model> model, uint64_t seed = 1) {
  model->train();
  return std::make_unique<Updater>(std::move(model), Schedule{.kind = "constant", .lr = 0.01},
                                   AdamW::Settings{}, Updater::Settings{.seed = seed});
}

TEST_CASE("an update of two micro-batches equals the whole batch, whatever each part scores") {
  const std::string yaml = "{layers: 2, d_model: 16, heads: 4}";
  auto whole = small_decoder(yaml), parts = small_decoder(yaml);
  auto one = updater(whole), two = updater(parts);
  for (int64_t step = 0; step < 3; ++step) {
    const auto batch = some_batch(12, 9);
    const auto a = one->step(step, {batch}), b = two->step(step, split(batch, 2));
    CHECK(a.losses.nll.item<double>() == Approx(b.losses.nll.item<double>()).epsilon(1e-12));
    CHECK(a.grad_norm.item<double>() == Approx(b.grad_norm.item<double>()).epsilon(1e-12));
    CHECK(a.lr == 0.01);
  }
  for (const auto& item : whole->named_parameters())
    CHECK(difference(item.value(), parts->named_parameters()[item.key()]) < 1e-9);
}

TEST_CASE("micro-batches weigh auxiliary losses by what they score, divided once by the whole") {
  const std::string yaml =
      "{layers: 2, d_model: 16, heads: 4, attention: {kind: moh, balance_weight: 0.5}}";
  auto model = small_decoder(yaml), same = small_decoder(yaml);
  const auto batches = split(some_batch(12, 9), 2);  // 6 x 6 and 6 x 9 scored targets
  const auto losses = updater(model)->add_gradients(0, batches);
  same->train();
  Tensor sum = at::zeros({}, at::kDouble);
  double aux = 0;
  for (const auto& batch : batches) {
    const auto out = same->forward(batch, {});
    const auto scored = batch.targets.ge(0).sum().item<double>();
    sum = sum + cross_entropy_sum(out.logits, batch.targets) + scored * out.aux.at(0).value;
    aux += scored * out.aux.at(0).value.item<double>() / 90;
  }
  (sum / 90).backward();
  for (const auto& item : model->named_parameters())
    if (item.value().grad().defined())
      CHECK(difference(item.value().grad(), same->named_parameters()[item.key()].grad()) < 1e-12);
  REQUIRE(losses.aux.size() == 1);
  CHECK(losses.aux[0].value.item<double>() == Approx(aux).epsilon(1e-12));
}

TEST_CASE("measuring an update gives its losses and leaves gradients and draws alone") {
  const std::string yaml = "{layers: 2, d_model: 16, heads: 4, dropout: 0.3}";
  auto model = small_decoder(yaml);
  model->train();
  Updater one(model, {.kind = "constant", .lr = 0.01}, {}, {.seed = 3, .label_smoothing = 0.2});
  const auto batches = split(some_batch(4, 9), 2);
  const auto measured = one.measure(5, batches);
  for (const auto& p : model->parameters()) CHECK_FALSE(p.grad().defined());
  const auto losses = one.step(5, batches).losses;
  CHECK(measured.nll.item<double>() == losses.nll.item<double>());
  CHECK(measured.smoothed.item<double>() == losses.smoothed.item<double>());
  CHECK(measured.nll.item<double>() != measured.smoothed.item<double>());
  CHECK(one.measure(6, batches).nll.item<double>() != losses.nll.item<double>());
}

TEST_CASE("an update draws by seed, step and micro-batch, and by nothing else") {
  const std::string yaml = "{layers: 2, d_model: 16, heads: 4, dropout: 0.3}";
  const auto batch = some_batch(4, 9);
  const auto loss = [&](uint64_t seed, int64_t step, int64_t before) {
    at::randn({before});
    return updater(small_decoder(yaml), seed)->step(step, {batch}).losses.nll.item<double>();
  };
  CHECK(loss(1, 5, 3) == loss(1, 5, 8));
  CHECK(loss(1, 5, 3) != loss(1, 6, 3));
  CHECK(loss(1, 5, 3) != loss(2, 5, 3));
  // The same examples twice in one update get different dropout: not twice the gradient.
  auto model = small_decoder(yaml);
  auto one = updater(model);
  one->add_gradients(0, {batch, batch});
  std::vector<Tensor> twice;
  for (const auto& p : model->parameters()) twice.push_back(p.grad().clone());
  one->optimizer().zero_grad();
  one->add_gradients(0, {batch});
  double apart = 0;
  for (size_t i = 0; const auto& p : model->parameters())
    apart = std::max(apart, difference(p.grad(), twice[i++]));
  CHECK(apart > 1e-6);
}

TEST_CASE("an update of targets that score nothing leaves a loss of 0, not NaN") {
  auto batch = some_batch(4, 9);
  batch.targets.fill_(kIgnored);
  auto one = updater(small_decoder("{layers: 1, d_model: 16, heads: 4}"));
  const auto result = one->step(0, {batch});
  CHECK(result.losses.nll.item<double>() == 0);
  CHECK(result.grad_norm.item<double>() == 0);
}

TEST_CASE("in bfloat16 an update stays near the one in float32, with weights in float32") {
  const std::string yaml = "{layers: 2, d_model: 16, heads: 4}";
  const auto batch = some_batch(4, 9);
  double losses[2] = {};
  for (bool half : {false, true}) {
    auto model = small_decoder(yaml);
    model->to(at::kFloat);
    model->train();
    Updater one(model, {.kind = "constant", .lr = 0.01}, {}, {.bf16 = half});
    const auto result = one.step(0, {batch});
    losses[half] = result.losses.nll.item<double>();
    CHECK(result.losses.nll.scalar_type() == at::kFloat);
    CHECK(model->parameters()[0].scalar_type() == at::kFloat);
    CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  }
  CHECK(losses[1] == Approx(losses[0]).epsilon(0.03));
  CHECK(losses[1] != losses[0]);
}

TEST_CASE("losses of heads enter the gradient and are reported apart from the task's") {
  const std::string fake = "{layers: 2, d_model: 16, heads: 4, attention: {kind: fake, weight: ";
  const auto batch = some_batch(4, 9);
  auto free = small_decoder(fake + "0.0}}"), weighted = small_decoder(fake + "0.5}}");
  auto a = updater(free), b = updater(weighted);
  const auto none = a->add_gradients(0, split(batch, 2)),
             some = b->add_gradients(0, split(batch, 2));
  CHECK(none.nll.item<double>() == Approx(some.nll.item<double>()).epsilon(1e-12));
  REQUIRE(some.aux.size() == 2);
  CHECK(some.aux[0].name == "summed");
  double sum = 0, gate[2] = {};
  for (int64_t layer = 0; layer < 2; ++layer) {
    const auto name = fmt::format("blocks.{}.attention.gate", layer);
    const auto g = weighted->named_parameters()[name];
    gate[layer] = 0.5 * static_cast<double>(layer + 1);
    sum += gate[layer] * g.square().sum().item<double>();
    // d/dg of (1 + 1/2) w g^2: the sum over layers and the mean of two.
    const auto extra = g.grad() - free->named_parameters()[name].grad();
    CHECK(difference(extra, 1.5 * 2 * gate[layer] * g.detach()) < 1e-12);
  }
  CHECK(some.aux[0].value.item<double>() == Approx(sum).epsilon(1e-12));
  CHECK(some.aux[1].value.item<double>() == Approx(sum / 2).epsilon(1e-12));
}

TEST_CASE("gates have their own rate and are clamped after the step") {
  auto model = small_decoder("{layers: 1, d_model: 16, heads: 4, attention: fake}");
  auto gate = model->named_parameters()["blocks.0.attention.gate"];
  const auto before = gate.detach().clone();
  auto one = updater(model);
  one->step(0, {some_batch(4, 9)});
  // AdamW's first step is its rate, whatever the gradient: gate_lr 0.1, not lr 0.01.
  CHECK(difference((gate - before).abs(), at::full_like(before, 0.1)) < 1e-6);
  for (int64_t step = 1; step < 12; ++step) one->step(step, {some_batch(4, 9)});
  CHECK(gate.min().item<double>() == 0.5);
}

}  // namespace
}  // namespace headlab::test_optimizer
