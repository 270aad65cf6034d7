// The transformer of 2017 (Vaswani et al., arXiv 1706.03762), hosting any kind of heads in each of
// its three sites: it reads a sentence and writes another.
//
//     encoder   x = drop(E[source] sqrt(D) + waves);  blocks
//     decoder   x = drop(E[ids] sqrt(D) + waves);  blocks with cross-attention on what was read
//     logits = x E^T + bias                              bias: a buffer, as in Marian
#include <cmath>
#include <set>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

// What one side has of its own; the rest is the model's.
struct SideOptions : Block {
  std::optional<int64_t> layers, heads, kv_heads, head_dim, d_ff;
  PartAttention attention;
  AttentionAt attention_at;

  // Before visit(): over what the parts are merged.
  void over(const KindBlock& shared) {
    attention.merge_over(shared);
    attention_at.merge_over(shared);
  }
  void visit(Fields& f) override {
    f("layers", layers, "transformer blocks (default: the model's)", between(1, 4096));
    f("heads", heads, "attention heads a layer (default: the model's)", at_least(1));
    f("kv_heads", kv_heads, "key/value heads (default: the model's)", at_least(1));
    f("head_dim", head_dim, "width of a head (default: the model's)", at_least(1));
    f("d_ff", d_ff, "width of the MLP (default: the model's)", at_least(1));
    f("attention", attention,
      "heads of its self-attention (default: the model's, with its attention_at)");
    if (attention.get()) attention_at.merge_over(*attention.get());
    f("attention_at", attention_at, "other heads in some layers, \"0\" or \"2-5\"");
  }
};

struct DecoderOptions : SideOptions {
  PartAttention cross;
  void visit(Fields& f) override {
    SideOptions::visit(f);
    f(kCrossSite, cross, "heads that look at what the encoder read (default: the model's)");
  }
};

// One side as a stack: the model's options with the side's over them.
struct Side : StackOptions {
  bool scale = true;
  Side(const StackOptions& shared, const SideOptions& own, bool scale)
      : StackOptions(shared), scale(scale) {
    const auto take = [](const auto& given, auto& to) {
      if (given) to = *given;
    };
    take(own.layers, layers), take(own.heads, heads);
    take(own.kv_heads, kv_heads), take(own.head_dim, head_dim), take(own.d_ff, d_ff);
    if (own.heads && !own.kv_heads) kv_heads.reset();
    if (own.attention.get()) attention = *own.attention.get(), attention_at = {};
    if (!own.attention_at.ranges().empty()) attention_at = own.attention_at;
  }
  Init init() const override { return Init::kXavier; }
  bool scales_embedding() const override { return scale; }
};

struct EncoderSide : Side {
  using Side::Side;
  std::string name() const override { return "encoder"; }
  std::string site() const override { return "encoder_self"; }
};

struct DecoderSide : Side {
  KindBlock cross_attention;
  DecoderSide(const StackOptions& shared, const DecoderOptions& own, bool scale)
      : Side(shared, own, scale),
        cross_attention(own.cross.get() ? *own.cross.get() : shared.attention) {}
  std::string name() const override { return "decoder"; }
  std::string site() const override { return "decoder_self"; }
  const KindBlock* cross() const override { return &cross_attention; }
  HeadDemands demands(int64_t layer) const override {
    auto demands = StackOptions::demands(layer);
    demands.causal = true, demands.bidirectional = false;
    return demands;
  }
};

class Seq2Seq : public Model {
 public:
  struct Options : StackOptions {
    SideOptions encoder;
    DecoderOptions decoder;
    bool share_embeddings = false, scale_embedding = true;

    Options() {
      pre_norm = false, bias = true, mlp = "relu";
      position = PositionOption("sinusoidal");
    }
    void visit(Fields& f) override {
      StackOptions::visit(f);
      encoder.over(attention), decoder.over(attention);
      decoder.cross.merge_over(attention);
      f("encoder", encoder, "what is different on the side that reads");
      f("decoder", decoder, "what is different on the side that writes");
      f("share_embeddings", share_embeddings, "both sides have one vocabulary and embed it alike");
      f("scale_embedding", scale_embedding, "embeddings are multiplied by the root of d_model");
    }
    void check(const Complain& complain) const override;
    std::vector<std::shared_ptr<const StackOptions>> stacks() const override {
      return {std::make_shared<EncoderSide>(*this, encoder, scale_embedding),
              std::make_shared<DecoderSide>(*this, decoder, scale_embedding)};
    }
  };

  Seq2Seq(const Options& options, const DataShape& data) : options_(options), data_(data) {
    require_data(data.source_vocabulary > 0 && data.vocabulary > 0,
                 "a seq2seq model reads pairs of texts");
    if (options.share_embeddings && data.source_vocabulary != data.vocabulary)
      throw ConfigError(c10::str("model.share_embeddings: the data have two vocabularies, of ",
                                 data.source_vocabulary, " and ", data.vocabulary, " tokens"));
    if (options.share_embeddings) {
      auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
      source_ = target_ = table(*embed, data.vocabulary);
    }
    const auto stacks = options.stacks();
    const StackInputs reads{.tokens = &Batch::source, .length = &Batch::source_length};
    const StackInputs writes{.memory_tokens = &Batch::source,
                             .memory_length = &Batch::source_length};
    encoder_ = &add(*stacks[0], reads, data.source_vocabulary, data.source_context, source_);
    decoder_ = &add(*stacks[1], writes, data.vocabulary, data.context, target_);
    auto head = register_module("head", std::make_shared<torch::nn::Module>("head"));
    bias_ = head->register_buffer("bias", at::zeros({data.vocabulary}));
    aim_at_heads();
  }

  Tensor embedding() const override { return target_; }
  Tensor unembedding() const override { return target_; }
  int64_t context() const override { return data_.context; }
  bool writes() const override { return true; }
  double flops_per_token() const override {
    const int64_t T = data_.context, S = data_.source_context;
    const auto words =
        static_cast<double>(options_.d_model) * static_cast<double>(data_.vocabulary);
    return 2 * words +
           (encoder_->flops(S, 0, false) + decoder_->flops(T, S, true)) / static_cast<double>(T);
  }

 private:
  Tensor table(torch::nn::Module& embed, int64_t vocabulary) {
    return embedding_table(embed, "token", vocabulary, options_.d_model,
                           1 / std::sqrt(options_.d_model), data_.pad);
  }
  Stack& add(const StackOptions& options, const StackInputs& inputs, int64_t vocabulary,
             int64_t context, Tensor& tokens) {
    auto part = register_module(options.name(), std::make_shared<torch::nn::Module>());
    auto embed = part->register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    if (!tokens.defined()) tokens = table(*embed, vocabulary);
    return add_stack(*embed, options, inputs, context);
  }

  Stack::Embed embed(const Stack& stack, const Tensor& tokens, const Tensor& ids,
                     const ModelContext& ctx) const {
    return [this, &stack, &ctx, tokens, ids](int64_t past) {
      const auto x = token_embedding(tokens, ids, data_.pad);  // [B,T,D]
      auto rng = ctx.rng;
      rng.site = CounterRng::site_key(stack.name());
      return drop_beside_blocks(stack.at_places(x, past), is_training() ? options_.dropout : 0,
                                rng);
    };
  }

  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    TORCH_CHECK(batch.source.defined() && batch.source.dim() == 2 && batch.ids.defined() &&
                    batch.ids.dim() == 2,
                "a seq2seq model reads source [B,S] and ids [B,T]");
    const auto memory = encoder_->forward(embed(*encoder_, source_, batch.source, ctx),
                                          {.batch = batch}, ctx, aux);  // [B,S,D]
    const auto x = decoder_->forward(embed(*decoder_, target_, batch.ids, ctx),
                                     {.batch = batch, .causal = true, .memory = memory}, ctx, aux);
    const auto asked = ctx.scored_only ? scored_rows(x, batch.targets) : x;
    return project(asked, target_, bias_);  // [B,T,V], or [n,V]
  }

  Options options_;
  DataShape data_;
  Tensor source_, target_, bias_;
  Stack *encoder_ = nullptr, *decoder_ = nullptr;
};

// Each side is checked as the stack that it becomes; what is wrong is said where it was written.
void Seq2Seq::Options::check(const Complain& complain) const {
  std::set<std::pair<std::string, std::string>> said;  // both sides share the model's options
  const auto check_side = [&](const StackOptions& stack, const std::set<std::string>& own) {
    stack.check([&](const std::string& field, const std::string& what) {
      const auto first = field.substr(0, field.find('.'));
      const auto place = own.contains(first) ? stack.name() + "." + field : field;
      if (said.emplace(place, what).second) complain(place, what);
    });
  };
  const auto written = [](SideOptions side) {
    std::set<std::string> own{kCrossSite};
    for (const auto& [name, value] : write_block(side).entries)
      if (value.kind != ConfigNode::Kind::kMapping || !value.entries.empty()) own.insert(name);
    return own;
  };
  check_side(*stacks()[0], written(encoder));
  check_side(*stacks()[1], written(decoder));
  if (!said.empty()) return;
  std::vector<LayerTarget> targets;
  for (const auto& [stack, own] :
       {std::pair{stacks()[0], written(encoder)}, {stacks()[1], written(decoder)}})
    for (auto& layer : stack->gate_targets()) {
      const auto first = layer.place.substr(0, layer.place.find('.'));
      if (own.contains(first)) layer.place = stack->name() + "." + layer.place;
      targets.push_back(std::move(layer));
    }
  check_gate_targets(targets, complain);
}

const RegisterModel<Seq2Seq> seq2seq_model("seq2seq", "encoder and decoder: translation");

}  // namespace
}  // namespace headlab
