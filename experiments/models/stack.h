// What the models share: options of a stack of transformer blocks, and the block itself.
#pragma once

#include "core/head_kinds.h"
#include "experiments/models/model.h"

namespace headlab {

// `position: rope`, or `position: {kind: rope, base: 500000.0}`.
class PositionOption : public CustomField {
 public:
  struct Settings : Block {
    std::string kind = "learned", layout = "half";
    double base = 10000, fraction = 1;
    int64_t buckets = 32, max_distance = 128;
    void visit(Fields& f) override;  // kind, and what that kind knows
    void check(const Complain& complain) const override;
  };
  const Settings* operator->() const { return &settings_; }

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "word or mapping"; }
  void forms(Forms& f) const override;

 private:
  Settings settings_;
};

// `attention_at: {"0": {...}, "2-5": {...}}`: other heads in some layers. The same kind merges over
// `attention`, another kind replaces it.
class AttentionAt : public CustomField {
 public:
  struct Range {
    std::string key;
    int64_t first = 0, last = 0;
    KindBlock heads;
    ConfigNode written;
  };
  const std::vector<Range>& ranges() const { return ranges_; }
  const Range* find(int64_t layer) const;  // null: `attention` rules there
  void merge_over(const KindBlock& attention) { attention_ = attention; }  // before read()

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "mapping of layers to kinds"; }
  void forms(Forms& f) const override;

 private:
  std::optional<KindBlock> attention_;
  std::vector<Range> ranges_;
};

struct StackOptions : ModelOptions {
  std::optional<int64_t> d_ff;
  std::string norm = "layer", mlp = "gelu";
  double norm_eps = 1e-5;
  bool pre_norm = true, bias = false;
  PositionOption position;
  double dropout = 0;
  std::optional<double> attention_dropout;
  std::vector<int64_t> window{0};
  KindBlock attention{head_registry(), "mha"};
  AttentionAt attention_at;

  void visit(Fields& f) override;
  // Shapes and the kinds' own demands of every layer, without building anything.
  void check(const Complain& complain) const override;

  int64_t hidden_width() const { return d_ff.value_or(4 * d_model); }
  HeadShape shape(int64_t layer, int64_t context = 0) const;  // context 0: not known yet
  virtual HeadDemands demands(int64_t layer) const;
  const KindBlock& attention_of(int64_t layer) const;
  bool aims_at_heads() const;  // some layer has a target number of open heads
  int64_t window_of(int64_t layer) const {
    return window[static_cast<size_t>(layer) % window.size()];
  }
};

// LN(x) = (x - mean) / sqrt(var + eps) * weight + bias, or RMS(x) without mean and bias.
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const StackOptions& options);
  Tensor forward(const Tensor& x);

 private:
  bool rms_;
  double eps_;
  Tensor weight_, bias_;
};
TORCH_MODULE(Norm);

// down(act(up x)), or down(silu(gate x) * up x) for swiglu.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const StackOptions& options);
  Tensor forward(const Tensor& x);
  double flops_per_token() const;

 private:
  Tensor activate(const Tensor& x) const;
  std::string activation_;
  Linear up_{nullptr}, gate_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Mlp);

// Attention and MLP, each with its norm and residual. Pre-norm x + f(norm x), post-norm
// norm(x + f x).
class TransformerBlockImpl : public torch::nn::Module {
 public:
  TransformerBlockImpl(const StackOptions& options, int64_t layer, int64_t context);
  // x [B,T,D] -> [B,T,D]. Losses of the heads are appended to `aux`.
  Tensor forward(const Tensor& x, const HeadContext& ctx, std::vector<AuxLoss>& aux);

  std::shared_ptr<AttentionHeads>& attention() { return attention_; }
  const AttentionHeads& attention() const { return *attention_; }
  void exchange(std::shared_ptr<AttentionHeads> heads);
  const MlpImpl& mlp() const { return *mlp_; }

 private:
  int64_t layer_;
  bool pre_norm_;
  double dropout_;
  Norm norm1_{nullptr}, norm2_{nullptr};
  std::shared_ptr<AttentionHeads> attention_;
  Mlp mlp_{nullptr};
};
TORCH_MODULE(TransformerBlock);

}  // namespace headlab
