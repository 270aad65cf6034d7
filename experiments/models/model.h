// A whole model that hosts any kind of heads. One file each, registered by an object.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "core/attention/call/observer.h"
#include "core/config/config.h"
#include "core/heads.h"
#include "experiments/data/batch.h"
#include "experiments/models/image_grid.h"

namespace headlab {

class GateTargetLossImpl;
class Stack;
struct StackInputs;
struct StackOptions;

inline constexpr const char* kSelfSite = "self";  // the only site of most models

// What the layers of each site of a stack have offered so far.
struct StackLinks {
  LayerLink self, cross;
};

// Of each stack of blocks by its name ("" where a model has one): 0 = into the first block, l =
// after block l. [B,T,D]
struct HiddenStates : std::map<std::string, std::vector<Tensor>> {
  // As the link stood there, so that a pass which goes on at a later block reads what this one did.
  std::map<std::string, std::vector<StackLinks>> links;
};

class Comm;

// What a model is run on, and the path that its attention takes there.
struct Compute {
  at::Device device = at::kCPU;
  Backend backend = Backend::kAuto;
  Comm* comm = nullptr;  // of the ranks that share what is measured; null: one process
};

// Everything of one call beside the examples.
struct ModelContext {
  HeadObserver* observer = nullptr;
  CounterRng rng = {};  // (seed, step): dropout and gate noise
  int64_t update = 0;   // of training, from 0; rng.step counts its micro-batches
  // Decoding: one a layer, and behind them one a cross-attention; resized at the first call.
  std::vector<LayerCache>* caches = nullptr;
  Backend backend = Backend::kAuto;
  HiddenStates* hidden = nullptr;  // filled; of a stack that goes on, from the state it goes on at
  std::map<std::string, Tensor>* normed = nullptr;  // filled: of stacks with a norm behind the last
                                                    // block, by name, what it gives [B,T,D]
  // Called before each attention layer: may set gates, offset, uniform of its heads.
  std::function<void(const std::string& site, int64_t layer, HeadContext& heads)> edit_heads = {};
  // Goes on from the states that an earlier pass over these examples left: stacks that are named
  // here begin with this block (or only end, where there is no such block), all others anew.
  const HiddenStates* known = nullptr;
  std::map<std::string, int64_t> first_block = {};
  // Logits of the targets >= 0 alone, in their order, [n,V]: of models that save by it.
  bool scored_only = false;
};

struct ModelOutput {
  Tensor logits;  // [B,T,V]; [n,V] of scored targets only; [B,V] where an example has one
  std::vector<AuxLoss> aux = {};  // one a name: combined over the layers
};

// One attention of a model, in every block of a stack: kSelfSite; or "encoder_self",
// "decoder_self", "cross".
struct Site {
  std::string name = {}, stack = {};
  // In order of depth. The pointers stay in place when a layer is exchanged.
  std::vector<std::shared_ptr<AttentionHeads>*> layers = {};
  // Which inputs of a batch stand at its queries and keys, and how many of them are there.
  Tensor Batch::*queries = nullptr;
  Tensor Batch::*keys = nullptr;
  Tensor Batch::*query_length = nullptr;
  Tensor Batch::*key_length = nullptr;

  // Whether tokens of a decoder's or encoder's own text stand at queries and keys.
  bool within_ids() const { return queries == &Batch::ids && keys == &Batch::ids; }
};

class Model : public torch::nn::Module {
 public:
  Model();
  ~Model() override;
  ModelOutput forward(const Batch& batch, const ModelContext& ctx);  // on the model's device

  std::vector<Site> sites();
  // Where a layer's parameters are registered, e.g. blocks.3.attention.
  std::string layer_path(const std::string& site, int64_t layer) const;
  // Puts other heads (sliced, converted) in the place of a layer's, parameters and all.
  void exchange(const std::string& site, int64_t layer, std::shared_ptr<AttentionHeads> heads);
  // ModelContext::first_block of a pass that differs from an earlier one from this layer on.
  std::map<std::string, int64_t> up_to(const std::string& site, int64_t layer) const;
  // Behind the last block of all, [B,T,D].
  const Tensor& last_state(const HiddenStates& hidden) const;

  // Parameters that want other treatment, and names of the losses that forward() may return while
  // training.
  void parameter_groups(ParameterGroups& groups);
  std::set<std::string> aux_names();
  // What tokens bring into the residual stream and what reads them from it, [V,D]; undefined where
  // a model has none.
  virtual Tensor embedding() const { return {}; }
  virtual Tensor unembedding() const { return {}; }
  virtual int64_t context() const = 0;
  // The longest sequence that it can read; none: any, though it was made for context(). Learned
  // positions end somewhere, and so do heads with weights for each place.
  std::optional<int64_t> longest();
  virtual std::optional<ImageGrid> image_grid() const { return {}; }  // of what it cuts an image in
  virtual bool predicts() const { return true; }  // it has logits, of which there is a loss
  virtual bool writes() const { return false; }   // its logits say which token comes next
  // Every output has seen every id, whatever the attention hides.
  virtual bool sees_whole_example() const { return false; }
  // Forward FLOPs a token at full context, causal halved.
  virtual double flops_per_token() const = 0;

 protected:
  // A stack of this model, in the order in which they are run; see Stack for what is registered.
  Stack& add_stack(torch::nn::Module& embed, const StackOptions& options, const StackInputs& inputs,
                   int64_t context);
  // The loss of layers that aim at a number of heads, where some do. To be called last.
  void aim_at_heads();

 private:
  // -> logits. Losses of the heads are appended to `aux`.
  virtual Tensor compute(const Batch& batch, const ModelContext& ctx,
                         std::vector<AuxLoss>& aux) = 0;
  Stack& stack_of(const std::string& site) const;

  std::vector<std::unique_ptr<Stack>> stacks_;
  std::shared_ptr<GateTargetLossImpl> gate_target_;  // null: no layer has a target
};

struct ModelOptions : Block {
  int64_t layers = 4, d_model = 128, heads = 4;
  std::optional<int64_t> kv_heads, head_dim;
  // What does not fit together with the data, as check() says it of the options alone.
  virtual void check_data(const DataShape&, const Complain&) const {}
  // Of each stack that the model has, in the order of running; not to outlive these options.
  virtual std::vector<std::shared_ptr<const StackOptions>> stacks() const { return {}; }
};

struct ModelKind {
  std::string name, summary;
  std::function<std::shared_ptr<ModelOptions>()> options;
  std::function<std::shared_ptr<Model>(const ModelOptions&, const DataShape&)> make;
};

void register_model(ModelKind kind);
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
