// Options of a stack of transformer blocks, of which models are made.
#pragma once

#include "core/head_kinds.h"
#include "experiments/models/gate_target.h"
#include "experiments/models/layer_positions.h"
#include "experiments/models/model.h"

namespace headlab {

// Heads of a part of the model, over those of `attention`: the same kind merges over it, another
// kind replaces it. Not written: they are those of `attention`.
class PartAttention : public CustomField {
 public:
  const KindBlock* get() const { return own_ ? &*own_ : nullptr; }         // null: not written
  void merge_over(const KindBlock& attention) { attention_ = attention; }  // before read()

  void read(const ConfigNode& node, const std::string& path, Problems& problems) override;
  ConfigNode write() const override;
  ConfigNode write_minimal() const override;
  std::string type() const override { return "kind"; }
  void forms(Forms& f) const override { f.kinds(head_registry(), ""); }

 private:
  std::optional<KindBlock> attention_, own_;
};

// `attention_at: {"0": {...}, "2-5": {...}}`: other heads in some layers, merged likewise.
class AttentionAt : public CustomField {
 public:
  struct Range : LayerRange {
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

inline constexpr const char* kCrossSite = "cross";

// head_dim defaults to d_model / heads, kv_heads to heads: complains where that cannot be.
void check_heads(int64_t d_model, int64_t heads, std::optional<int64_t> head_dim,
                 std::optional<int64_t> kv_heads, const Complain& complain);

struct StackOptions : ModelOptions {
  std::optional<int64_t> d_ff;
  std::string norm = "layer", mlp = "gelu";
  double norm_eps = 1e-5;
  bool pre_norm = true, bias = false;
  PositionOption position;
  PositionAt position_at;
  double dropout = 0;
  std::optional<double> attention_dropout;
  double activation_dropout = 0;
  std::vector<int64_t> window{0};
  KindBlock attention{head_registry(), "mha"};
  AttentionAt attention_at;

  void visit(Fields& f) override;
  // Shapes and the kinds' own demands of every layer, without building anything; of a stack that is
  // the whole model what its layers aim at, too.
  void check(const Complain& complain) const override;
  std::vector<std::shared_ptr<const StackOptions>> stacks() const override {
    return {{std::shared_ptr<void>(), this}};
  }

  // Where the stack stands in its model; a model of several overrides these. Written nowhere.
  virtual std::string name() const {
    return "";
  }  // "encoder": its parameters are encoder.blocks...
  virtual std::string site() const { return kSelfSite; }  // of its self-attention
  virtual const KindBlock* cross() const {
    return nullptr;
  }  // heads of the site "cross": they
     // look at a memory; null: none
  virtual Init init() const { return Init::kGpt2; }
  // Embeddings are multiplied by the root of d_model, as Vaswani et al. match them to the waves.
  virtual bool scales_embedding() const { return position->kind == "sinusoidal"; }

  // Complains of data that are pairs of texts, of which this model would see one alone.
  void check_alone(const DataShape& data, const Complain& complain) const;
  int64_t hidden_width() const { return d_ff.value_or(4 * d_model); }
  HeadShape shape(int64_t layer, int64_t context = 0) const;  // context 0: not known yet
  // What the layer has to say to later ones, of self-attention, because they read it.
  LinkParts offers(int64_t layer) const;
  HeadShape cross_shape(int64_t layer, int64_t context = 0) const;
  virtual HeadDemands demands(int64_t layer) const;  // here those of a stack that is not causal
  std::vector<LayerTarget> gate_targets() const;     // of each layer of each site
  // Whether a norm stands behind the last block.
  virtual bool ends_in_norm() const { return pre_norm; }
  const KindBlock& attention_of(int64_t layer) const;
  const PositionOption::Settings& position_of(int64_t layer) const {
    return position_at.of(layer, position);
  }
  int64_t window_of(int64_t layer) const {
    return window[static_cast<size_t>(layer) % window.size()];
  }
};

// The kind that the options name for a layer of a site; "?": there is no such site.
std::string kind_of_heads(const ModelOptions& options, const std::string& site, int64_t layer);

}  // namespace headlab
