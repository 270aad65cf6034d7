#include "experiments/benchmarks/bench_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/config/config.h"
#include "core/errors.h"
#include "core/head_kinds.h"
#include "core/observe/probe.h"
#include "core/torch.h"
#include "experiments/benchmarks/turns.h"
#include "experiments/training/update.h"

namespace headlab {
namespace {

constexpr int64_t kMostDecoded = 16;  // tokens of a pass, of which the mean counts
constexpr int64_t kVocabulary = 65;   // of the tokens that statistics look at
constexpr uint64_t kSeed = 1337;

HeadShape head_shape(const BenchSetting& setting) {
  const auto& sizes = setting.shape;
  HeadShape shape;
  shape.d_model = sizes.width;
  shape.heads = shape.kv_heads = sizes.heads;
  shape.head_dim = sizes.width / sizes.heads;
  shape.layers = 4, shape.layer = 1;  // not the first, which some kinds build otherwise
  shape.context = sizes.tokens;
  return shape;
}

HeadDemands demands_of(const std::string& attention) {
  return {.causal = attention == "causal",
          .bidirectional = attention == "bidirectional",
          .cross = attention == "cross"};
}

// The last of T tokens: those before them are in the cache.
int64_t decoded_tokens(int64_t T) { return std::min(kMostDecoded, T / 2); }

// ConfigError with what keeps a kind from this shape, or from attending so.
void require_fitting(const KindBlock& block, const HeadShape& shape, const HeadDemands& demands) {
  std::string problem;
  check_layer(block, shape, demands, [&](const std::string& field, const std::string& what) {
    if (problem.empty()) problem = field.empty() ? what : field + ": " + what;
  });
  if (!problem.empty()) throw ConfigError(problem);
}

int64_t bytes_of(const Tensor& t) {
  return t.defined() ? t.numel() * static_cast<int64_t>(t.element_size()) : 0;
}

}  // namespace

const char* name_of(BenchPass pass) {
  switch (pass) {
    case BenchPass::kForward:
      return "forward";
    case BenchPass::kBoth:
      return "both";
    case BenchPass::kStatistics:
      return "statistics";
    case BenchPass::kDecode:
      return "decode";
  }
  return "";
}

BenchLayer::BenchLayer(const KindBlock& block, Backend backend, const BenchSetting& setting)
    : setting_(setting), backend_(backend) {
  const auto shape = head_shape(setting);
  require_fitting(block, shape, demands_of(setting.attention));
  torch::manual_seed(kSeed);
  heads_ = make_heads(block, shape);
  heads_->to(setting.device);
  const auto& s = setting.shape;
  const auto options = at::TensorOptions().device(setting.device);
  x_ = at::randn({s.batch, s.tokens, s.width}, options).requires_grad_();
  cotangent_ = at::randn({s.batch, s.tokens, s.width}, options);
  tokens_ = at::randint(kVocabulary, {s.batch, s.tokens}, options.dtype(at::kLong));
  if (setting.attention == "cross")
    memory_ = at::randn({s.batch, s.tokens, s.width}, options).requires_grad_();
}

HeadContext BenchLayer::context() const {
  HeadContext context;
  context.mask.causal = setting_.attention == "causal";
  context.memory = memory_;
  context.backend = backend_;
  context.rng.seed = kSeed;
  return context;
}

void BenchLayer::forward() {
  const at::NoGradGuard no_grad;
  const Autocast half(setting_.device, setting_.bf16);
  heads_->eval();
  heads_->forward(x_, context());
}

void BenchLayer::both(HeadProbe* probe) {
  auto call = context();
  call.observer = probe;
  heads_->train();
  HeadOutput out;
  {
    const Autocast half(setting_.device, setting_.bf16);
    out = heads_->forward(x_, call);
  }
  std::vector<Tensor> ends{out.y}, gradients{cotangent_.to(out.y.scalar_type())};
  for (const auto& aux : out.aux)
    ends.push_back(aux.value), gradients.push_back(at::ones_like(aux.value));
  torch::autograd::backward(ends, gradients);
  heads_->zero_grad();
  for (auto* input : {&x_, &memory_})
    if (input->defined()) input->mutable_grad() = Tensor();
  heads_->after_step();
}

void BenchLayer::run(BenchPass pass) {
  if (pass == BenchPass::kForward) return forward();
  if (pass == BenchPass::kBoth) return both(nullptr);
  HeadProbe probe;
  probe.statistics = probe.matches = true;
  probe.tokens = tokens_;
  both(&probe);
  probe.values(heads_->shape().layer);
}

double BenchLayer::decoded() {
  const at::NoGradGuard no_grad;
  const Autocast half(setting_.device, setting_.bf16);
  heads_->eval();
  LayerCache cache;
  auto call = context();
  call.cache = &cache;
  const int64_t T = setting_.shape.tokens, count = decoded_tokens(T);
  heads_->forward(x_.narrow(1, 0, T - count), call);
  const double all = timed(setting_.device, [&] {
    for (int64_t t = T - count; t < T; ++t) heads_->forward(x_.narrow(1, t, 1), call);  // [B,1,D]
  });
  return all / static_cast<double>(count);
}

std::string BenchLayer::tried(BenchPass pass) {
  if (pass == BenchPass::kDecode && setting_.attention != "causal")
    return "decoding is causal: --attention causal measures it";
  if (pass == BenchPass::kDecode && !heads_->traits().decodes)
    return fmt::format("'{}' heads do not decode with a cache", heads_->kind());
  if (pass == BenchPass::kDecode && decoded_tokens(setting_.shape.tokens) == 0)
    return "one token has none before it";
  try {
    if (pass == BenchPass::kDecode) {
      decoded();
    } else {
      run(pass);
    }
  } catch (const c10::OutOfMemoryError&) {
    return "out of memory";
  } catch (const BackendError& error) {
    return error.what();
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    return what.substr(0, what.find('\n'));
  }
  return "";
}

std::string BenchLayer::reason(BenchPass pass) {
  const auto known = reasons_.find(pass);
  return known != reasons_.end() ? known->second
                                 : reasons_.emplace(pass, tried(pass)).first->second;
}

double BenchLayer::turn(BenchPass pass) {
  const auto once = [&] {
    return pass == BenchPass::kDecode ? decoded() : timed(setting_.device, [&] { run(pass); });
  };
  return shortest_of_turn(once, setting_.seconds);
}

double BenchLayer::flops(BenchPass pass) const {
  if (pass != BenchPass::kForward && pass != BenchPass::kBoth)
    return std::numeric_limits<double>::quiet_NaN();
  const auto T = static_cast<double>(setting_.shape.tokens);
  const double pairs = setting_.attention == "causal" ? T * T / 2 : T * T;
  const double forward = static_cast<double>(setting_.shape.batch) *
                         heads_->flops(setting_.shape.tokens, setting_.shape.tokens, pairs);
  return pass == BenchPass::kBoth ? 3 * forward : forward;
}

const Allocations& BenchLayer::allocations(BenchPass pass) {
  const auto known = allocations_.find(pass);
  if (known != allocations_.end()) return known->second;
  const auto counted = allocations_of([&] { run(pass); }, setting_.device.type());
  return allocations_.emplace(pass, counted).first->second;
}

double BenchLayer::moved(BenchPass pass) {
  int64_t read = bytes_of(x_) + bytes_of(memory_);
  for (const auto& weight : heads_->parameters()) read += bytes_of(weight);
  return static_cast<double>(read + 2 * allocations(pass).total);
}

NamedTensors BenchLayer::tensors() {
  const at::NoGradGuard no_grad;
  heads_->eval();
  NamedTensors all{{"x", x_.detach()}, {"y", heads_->forward(x_, context()).y}};
  if (memory_.defined()) all.emplace("memory", memory_.detach());
  for (const auto& weight : heads_->named_parameters())
    all.emplace(weight.key(), weight.value().detach());
  return all;
}

}  // namespace headlab
