// Random calls of every registered kind: what one path computes, every other one does.
//
// A fault prints the line that makes its call again.
#include <errno.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "core/attention/attend.h"
#include "core/attention/paths/paths.h"
#include "core/errors.h"
#include "experiments/training/update.h"
#include "tests/isa_testing.h"
#include "tests/random_calls.h"

namespace headlab::test_random_calls {
using namespace testing;

namespace {

// Relative to the largest number that is wanted.
struct Tolerance {
  double y, gradients;
};
constexpr Tolerance kExact{1e-9, 1e-8};
// Where one key has all the weight, gradients of float32 paths that make their weights again by the
// log-sum-exp keep few digits.
constexpr Tolerance kSingle{2e-5, 5e-3};
constexpr double kHalf = 2e-2;  // of all of y together

struct Passed {
  Tensor y, gates;
  std::vector<std::pair<std::string, Tensor>> gradients = {};
};

double distance(const Tensor& got, const Tensor& want) {
  return relative_difference(got.to(at::kDouble), want.to(at::kDouble));
}

std::vector<std::string> all_paths() {
  auto names = attend_path_names();
  names.emplace_back("auto");
  return names;
}

class Checker {
 public:
  explicit Checker(const std::string& kind, uint64_t number)
      : call_(kind, number), number_(number), kind_(kind) {}

  void run() {
    check("float64", [&] { exact_ = paths(at::kDouble, /*training=*/false, {}); });
    check("float32", [&] { paths(at::kFloat, /*training=*/false, exact_); });
    check("training", [&] { paths(at::kDouble, /*training=*/true, {}); });
    check("watched", [&] { watched(); });
    check("sliced", [&] { sliced(); });
    check("decoded", [&] { decoded(); });
    check("half types", [&] { half_types(); });
  }

 private:
  void check(const char* name, const std::function<void()>& work) {
    faults_.clear();
    guarded(work);
    if (faults_.empty()) return;
    std::string what;
    for (size_t n = 0; n < std::min<size_t>(faults_.size(), 3); ++n) what += "\n    " + faults_[n];
    if (faults_.size() > 3) what += "\n    and " + std::to_string(faults_.size() - 3) + " more";
    FAIL_CHECK(name << ":" << what << "\n  call: " << call_.text()
                    << "\n  again: " << program_invocation_short_name << " '"
                    << Catch::getResultCapture().getCurrentTestName() << "' -c " << kind_ << " -c "
                    << number_);
  }
  void fault(const std::string& what) { faults_.push_back(what); }

  // Whatever is thrown is a fault.
  void guarded(const std::function<void()>& work) {
    try {
      work();
    } catch (const std::exception& error) {
      const std::string what = error.what();
      fault("throws: " + what.substr(0, what.find('\n')));
    }
  }

  Passed pass(AttentionHeads& heads, const Inputs& in, Backend backend) {
    auto ctx = in.ctx;
    ctx.backend = backend;
    auto out = heads.forward(in.x, ctx);
    Passed passed{out.y.detach(), out.gates.defined() ? out.gates.detach() : Tensor()};
    if (in.leaves.empty()) return passed;
    heads.zero_grad();
    auto loss = (out.y * call_.cotangent.to(out.y.scalar_type())).sum();
    for (const auto& aux : out.aux) loss = loss + aux.value;
    loss.backward();
    const auto add = [&](const std::string& name, const Tensor& of) {
      passed.gradients.emplace_back(
          name, of.grad().defined() ? of.grad().clone() : at::zeros_like(of.detach()));
      of.mutable_grad() = Tensor();
    };
    for (const auto& [name, leaf] : in.leaves) add(name, leaf);
    for (const auto& p : heads.named_parameters()) add(p.key(), p.value());
    return passed;
  }

  void near(const std::string& what, const Tensor& got, const Tensor& want, double limit) {
    const double by = distance(got, want);
    if (!(by <= limit)) fault(what + " differs by " + shortest(by));
  }
  // Numbers that rounding alone moves far may differ further: as far as `want` is from `exact`,
  // ten times over.
  void near(const std::string& what, const Passed& got, const Passed& want, Tolerance limit,
            const Passed& exact = {}) {
    const auto of = [&](double least, const Tensor& wanted, const Tensor& right) {
      return right.defined() ? std::max(least, 10 * distance(wanted, right)) : least;
    };
    near(what, got.y, want.y, of(limit.y, want.y, exact.y));
    if (got.gates.defined()) near(what + ", gates", got.gates, want.gates, limit.y);
    for (size_t n = 0; n < got.gradients.size(); ++n) {
      const auto& [name, gradient] = want.gradients[n];
      const auto right = exact.gradients.empty() ? Tensor() : exact.gradients[n].second;
      near(fmt::format("{}, gradient of {}", what, name), got.gradients[n].second, gradient,
           of(limit.gradients, gradient, right) * size_beside(want, name));
    }
  }
  // How much larger the gradient of a bias's weight is than 1. A bias of keys shifts the scores of
  // a row alike: its gradient is 0 but for what is left of rounding that weight's terms.
  static double size_beside(const Passed& want, const std::string& name) {
    if (!name.ends_with(".bias")) return 1;
    const auto weight = name.substr(0, name.size() - 4) + "weight";
    for (const auto& [other, gradient] : want.gradients)
      if (other == weight && gradient.numel() > 0) return 1 + gradient.abs().max().item<double>();
    return 1;
  }
  void finite(const std::string& what, const Passed& passed) {
    if (!passed.y.isfinite().all().item<bool>()) fault(what + ": y is not finite");
    for (const auto& [name, gradient] : passed.gradients)
      if (!gradient.isfinite().all().item<bool>())
        fault(fmt::format("{}: the gradient of {} is not finite", what, name));
  }

  // Every path that serves, with the kernels of every instruction set, against the whole map.
  // Returns what that gives.
  Passed paths(at::ScalarType type, bool training, const Passed& exact) {
    const auto heads = call_.layer(type, training);
    const auto in = call_.inputs(type, /*gradients=*/true, type);
    const auto limit = type == at::kDouble ? kExact : kSingle;
    auto eager = pass(*heads, in, Backend::kEager);
    finite("eager", eager);
    if (exact.y.defined()) near("eager in float64", eager.y, exact.y, 5 * limit.y);
    for (const auto& name : all_paths())
      for (const Isa isa : isas_of_machine()) {
        // The others are torch's, or what auto takes.
        if (name == "eager" || (name != "auto" && isa != isas_of_machine().front())) continue;
        const WithIsa with(isa);
        try {
          near(name + " with " + isa_name(isa), pass(*heads, in, backend_named(name)), eager, limit,
               exact);
        } catch (const BackendError& refused) {
          if (name == "auto") fault(std::string("auto refuses: ") + refused.what());
        }
      }
    return eager;
  }

  // An observer changes nothing, and finds the same on every path.
  void watched() {
    const auto heads = call_.layer(at::kDouble);
    const auto in = call_.inputs(at::kDouble, /*gradients=*/false, at::kDouble);
    std::map<std::string, std::vector<double>> first;
    for (const auto backend : {Backend::kEager, Backend::kAuto})
      for (const Isa isa : isas_of_machine()) {
        const WithIsa with(isa);
        HeadProbe probe;
        probe.statistics = probe.maps = probe.patterns = probe.head_outputs = true;
        probe.js_stride = 1;
        auto seen = in;
        seen.ctx.observer = &probe;
        near("y when it is watched", pass(*heads, seen, backend), pass(*heads, in, backend),
             kExact);
        const auto values = probe.values(call_.number_of_layer());
        if (first.empty()) first = values;
        for (const auto& [name, of_heads] : values) same(name, of_heads, first[name]);
        if (!weighs_tokens(call_.traits())) continue;
        for (const auto& [key, map] : probe.layer_maps())
          if (map.isnan().any().item<bool>()) fault("a map has numbers that are none");
      }
  }
  void same(const std::string& statistic, const std::vector<double>& got,
            const std::vector<double>& want) {
    for (size_t n = 0; n < got.size(); ++n) {
      if (std::isinf(got[n])) fault("the statistic " + statistic + " is infinite");
      if (std::isnan(got[n]) && std::isnan(want[n])) continue;
      if (!(std::abs(got[n] - want[n]) <= 1e-8 * (1 + std::abs(want[n]))))
        fault("the statistic " + statistic + " is " + shortest(got[n]) + ", of eager " +
              shortest(want[n]));
    }
  }

  // Heads that are masked and those that are sliced away are absent alike.
  void sliced() {
    const auto heads = call_.layer(at::kDouble);
    heads->mask_heads(call_.gone);
    const auto small = heads->slice();
    const auto in = call_.inputs(at::kDouble, /*gradients=*/true, at::kDouble);
    auto want = pass(*heads, in, Backend::kEager);
    want.gradients.resize(in.leaves.size());  // parameters have other shapes
    for (const auto backend : {Backend::kEager, Backend::kAuto}) {
      auto got = pass(*small, in, backend);
      got.gradients.resize(in.leaves.size());
      near("sliced", got, want, kExact);
    }
  }

  // Chunk by chunk with a cache, whose examples change places on the way.
  void decoded() {
    const auto& traits = call_.traits();
    auto in = call_.inputs(at::kDouble, /*gradients=*/false, at::kDouble);
    const int64_t T = call_.tokens(), B = in.x.size(0);
    if (!traits.decodes || T > 60 || !(in.ctx.mask.causal || call_.is_cross())) return;
    at::NoGradGuard no_grad;
    auto& draw = call_.draws();
    auto heads = call_.layer(at::kDouble);
    heads->mask_heads(call_.gone);
    if (draw.coin()) heads = heads->slice();
    auto& asked = in.ctx;
    if (!call_.is_cross()) asked.mask.key_length = asked.mask.query_length = Tensor();
    if (asked.mask.window > 0) asked.mask.allowed = asked.bias = Tensor();  // old keys are dropped
    if (auto& allowed = asked.mask.allowed; allowed.defined() && allowed.size(2) > 1)
      allowed = Tensor();  // the row of a lone query would be a mask of keys
    const auto whole = heads->forward(in.x, asked).y;
    LayerCache cache;
    auto rows = at::arange(B);
    for (int64_t at = 0; at < T;) {
      const int64_t chunk = std::min(T - at, draw.coin() ? 1 : draw.pick(1, 5));
      auto ctx = part_of(asked, rows, at, chunk);
      ctx.cache = &cache;
      const auto y = heads->forward(in.x.index_select(0, rows).narrow(1, at, chunk), ctx).y;
      near("places " + std::to_string(at) + " to " + std::to_string(at + chunk - 1), y,
           whole.index_select(0, rows).narrow(1, at, chunk), kExact.y);
      at += chunk;
      if (!draw.coin()) continue;
      const auto order = at::randint(B, {B}, at::kLong);
      cache.select(order);
      rows = rows.index_select(0, order);
    }
  }
  // What of a context the queries from `at` on are asked with, in these examples.
  HeadContext part_of(HeadContext ctx, const Tensor& rows, int64_t at, int64_t chunk) const {
    for (auto* t : {&ctx.memory, &ctx.mask.key_length, &ctx.mask.query_length, &ctx.mask.allowed,
                    &ctx.bias, &ctx.gates, &ctx.offset})
      if (t->defined() && t->size(0) > 1) *t = t->index_select(0, rows);
    if (ctx.positions.defined()) ctx.positions = ctx.positions.narrow(0, at, chunk);
    for (auto* t : {&ctx.mask.allowed, &ctx.bias, &ctx.gates})
      if (t->defined() && t->size(2) > 1) *t = t->narrow(2, at, chunk);
    for (auto* t : {&ctx.mask.allowed, &ctx.bias})
      if (t->defined() && !call_.is_cross()) *t = t->narrow(3, 0, at + chunk);
    return ctx;
  }

  // Under autocast as near as rounding to bfloat16 lets y be; with weights in it finite.
  void half_types() {
    const auto single = call_.layer(at::kFloat), half = call_.layer(at::kBFloat16);
    const auto in = call_.inputs(at::kFloat, /*gradients=*/true, at::kFloat),
               in_half = call_.inputs(at::kBFloat16, /*gradients=*/true, at::kFloat);
    for (const auto& name : all_paths()) try {
        const auto autocast = [&] {
          Autocast on(at::kCPU, /*bf16=*/true);
          return pass(*single, in, backend_named(name));
        }();
        finite(name + " under autocast", autocast);
        near_half(name + " under autocast", autocast.y);
        finite(name + " in bfloat16", pass(*half, in_half, backend_named(name)));
      } catch (const BackendError&) {
      }
  }
  void near_half(const std::string& what, const Tensor& got) {
    const auto by = [&](const Tensor& y) {
      const auto& want = exact_.y;
      return ((y.to(at::kDouble) - want).norm() / (1e-3 + want.norm())).item<double>();
    };
    const double found = by(got);
    if (found <= kHalf) return;
    if (moved_ == 0)  // kinds that choose may choose otherwise
      for (int n = 0; n < 12; ++n) moved_ = std::max(moved_, by(call_.moved_a_little()));
    // A row may be the small difference of two large ones, whose rounding is all of it; not many
    // are.
    const auto rows = (got.to(at::kDouble) - exact_.y).norm(2, -1) / (1e-3 + exact_.y.norm(2, -1));
    if (!(found <= 4 * moved_) && !(rows.median().item<double>() <= kHalf))
      fault(what + " differs by " + shortest(found) + ", where rounding x and the weights moves " +
            "it by " + shortest(moved_));
  }

  RandomCall call_;
  uint64_t number_;
  std::string kind_;
  Passed exact_;      // in float64
  double moved_ = 0;  // by rounding; 0: not known yet
  std::vector<std::string> faults_;
};

void check_calls(uint64_t calls) {
  for (const auto& kind : head_names()) DYNAMIC_SECTION(kind) {
      for (uint64_t number = 1; number <= calls; ++number) DYNAMIC_SECTION(number) {
          Checker(kind, number).run();
          SUCCEED();
        }
    }
}

// Of the calls that a day's test makes.
constexpr uint64_t kCalls = 3;

}  // namespace

TEST_CASE("random calls agree on every path", "[laws]") { check_calls(kCalls); }

TEST_CASE("many random calls agree on every path", "[laws][.slow]") { check_calls(32); }

TEST_CASE("random calls ask for everything, and every path serves some of them",
          "[laws][variants]") {
  at::NoGradGuard no_grad;
  std::map<std::string, int> served;
  std::string texts;
  for (const auto& kind : head_names())
    for (uint64_t number = 1; number <= kCalls; ++number) {
      const RandomCall call(kind, number);
      texts += call.text() + "\n";
      for (const auto& name : all_paths()) try {
          auto in = call.inputs(at::kDouble, /*gradients=*/false, at::kDouble);
          in.ctx.backend = backend_named(name);
          call.layer(at::kDouble)->forward(in.x, in.ctx);
          ++served[name];
        } catch (const BackendError&) {
        }
    }
  for (const auto& name : all_paths()) {
    INFO(name);
    CHECK(served[name] > 0);
  }
  for (const char* asked :
       {"kv_heads", "memory",    "causal",  "window",      "lengths", "allowed",  "by head",
        "rope",     "positions", " bias",   "that learns", "alibi",   "relative", "gates",
        "offset",   "noise",     "uniform", "dropout",     "map: ",   "inner: "})
    CHECK_THAT(texts, Catch::Contains(asked));
}

}  // namespace headlab::test_random_calls
