// A whole model that hosts any kind of heads. One file each, registered by an object.
#pragma once

#include <functional>
#include <map>
#include <set>

#include "core/attention/observer.h"
#include "core/config/config.h"
#include "core/heads.h"
#include "experiments/data/batch.h"

namespace headlab {

// Everything of one call beside the examples.
struct ModelContext {
  HeadObserver* observer = nullptr;
  CounterRng rng;      // (seed, step): dropout and gate noise
  int64_t update = 0;  // of training, from 0; rng.step counts its micro-batches
  std::vector<LayerCache>* caches = nullptr;  // decoding, one a layer; resized at the first call
  Backend backend = Backend::kAuto;
  std::vector<Tensor>* hidden = nullptr;  // filled: 0 = into the first block, l = after block l
  // Called before each attention layer: may set gates, offset, uniform of its heads.
  std::function<void(const std::string& site, int64_t layer, HeadContext& heads)> edit_heads = {};
  // Goes on from `input` [B,T,D], the hidden state into block `first_block`, instead of the
  // embedded ids; `hidden` then starts there.
  int64_t first_block = 0;
  Tensor input = {};
};

struct ModelOutput {
  Tensor logits;             // [B,T,V]
  std::vector<AuxLoss> aux;  // one a name: combined over the layers
};

class Model : public torch::nn::Module {
 public:
  virtual ModelOutput forward(const Batch& batch, const ModelContext& ctx) = 0;  // on its device
  // Attention layers by site ("self", ...), in order of depth. The pointers stay in place when a
  // layer is exchanged.
  virtual std::map<std::string, std::vector<std::shared_ptr<AttentionHeads>*>> sites() = 0;
  // Where a layer's parameters are registered, e.g. blocks.3.attention.
  virtual std::string layer_path(const std::string& site, int64_t layer) const = 0;
  // Puts other heads (sliced, converted) in the place of a layer's, parameters and all.
  virtual void exchange(const std::string& site, int64_t layer,
                        std::shared_ptr<AttentionHeads> heads) = 0;
  // Parameters that want other treatment, and names of the losses that forward() may return while
  // training: those of all heads; a model adds its own.
  virtual void parameter_groups(ParameterGroups& groups);
  virtual std::set<std::string> aux_names();
  // What tokens bring into the residual stream and what reads them from it, [V,D]; undefined where
  // a model has none.
  virtual Tensor embedding() const { return {}; }
  virtual Tensor unembedding() const { return {}; }
  virtual int64_t context() const = 0;
  // Forward FLOPs a token at full context, causal halved.
  virtual double flops_per_token() const = 0;
};

struct ModelOptions : Block {
  int64_t layers = 4, d_model = 128, heads = 4;
  std::optional<int64_t> kv_heads, head_dim;
};

struct ModelKind {
  std::string name, summary;
  std::function<std::shared_ptr<ModelOptions>()> options;
  std::function<std::shared_ptr<Model>(const ModelOptions&, const DataShape&)> make;
};

void register_model(ModelKind kind);
std::vector<std::string> model_names();
const ModelKind& model_kind(const std::string& name);
const KindRegistry& model_registry();

template <class M>
struct RegisterModel {
  RegisterModel(const char* name, const char* summary) {
    using Options = typename M::Options;
    register_model({name, summary, [] { return std::make_shared<Options>(); },
                    [](const ModelOptions& options, const DataShape& data) {
                      return std::make_shared<M>(dynamic_cast<const Options&>(options), data);
                    }});
  }
};

// Every attention layer, site after site.
std::vector<std::shared_ptr<AttentionHeads>*> all_heads(Model& model);

int64_t parameter_count(const Model& model);  // numbers in all of its parameters

// The losses of all layers, one a name: the sum of those with the same name, or the mean over the
// layers that return it (AuxLoss::over). In order of their first appearance.
std::vector<AuxLoss> combine_aux(const std::vector<AuxLoss>& losses);

}  // namespace headlab
