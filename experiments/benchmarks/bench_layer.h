// One attention layer with its projections, and the passes of it that are timed.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/heads.h"
#include "core/restore_heads.h"
#include "experiments/benchmarks/allocations.h"
#include "experiments/benchmarks/bench_shape.h"

namespace headlab {

class HeadProbe;

enum class BenchPass {
  kForward,     // without gradients
  kBoth,        // forward and backward, gradients of weights and input
  kStatistics,  // the same with all statistics of the heads
  kDecode       // one token, the mean of the last 16 of T, with a cache of those before it
};
const char* name_of(BenchPass pass);  // "forward", "both", "statistics", "decode"

// What all layers of a comparison share.
struct BenchSetting {
  BenchShape shape;
  std::string attention = "causal";  // or "bidirectional", "cross": of as many keys, of a memory
  bool bf16 = false;                 // by autocast, as training has it
  at::Device device = at::kCPU;
  double seconds = 0;  // of a turn
};

// Who takes turns in a comparison: a layer of this program, or one of another.
class BenchSide {
 public:
  virtual ~BenchSide() = default;
  virtual std::string reason(BenchPass pass) = 0;  // why it has no such pass; "": it has one
  virtual double turn(BenchPass pass) = 0;         // seconds of the shortest pass, of a token
};

class BenchLayer : public BenchSide {
 public:
  // Weights and inputs are drawn from a fixed seed. ConfigError where the kind does not fit the
  // shape, or cannot attend so.
  BenchLayer(const KindBlock& block, Backend backend, const BenchSetting& setting);

  std::string reason(BenchPass pass) override;  // a pass is tried, once
  double turn(BenchPass pass) override;

  // Floating-point operations of a forward pass by the kind's own count, three times as many of a
  // pass that goes back too; NaN where the kind does not count, and of other passes.
  double flops(BenchPass pass) const;
  // Of a pass, beyond the weights and the input.
  const Allocations& allocations(BenchPass pass);
  // Bytes that a pass moves at least once: weights and inputs are read, and what it allocates is
  // written and read.
  double moved(BenchPass pass);

  // x [B,T,D], `memory` of cross-attention, weights under their names, and y [B,T,D] of these.
  NamedTensors tensors();

 private:
  HeadContext context() const;
  void run(BenchPass pass);
  void forward();
  void both(HeadProbe* probe);
  double decoded();  // seconds of a token
  std::string tried(BenchPass pass);

  BenchSetting setting_;
  Backend backend_;
  std::shared_ptr<AttentionHeads> heads_;
  Tensor x_, memory_, cotangent_, tokens_;  // [B,T,D], [B,T,D], [B,T,D], [B,T] int64
  std::map<BenchPass, std::string> reasons_;
  std::map<BenchPass, Allocations> allocations_;
};

}  // namespace headlab
