// An encoder as BERT is one (Devlin et al., arXiv 1810.04805), hosting any kind of heads: it fills
// in words that were masked, tells classes of texts apart, or embeds sentences.
//
//     x = drop(LN(E[ids] + segments + positions));  blocks, norms after the sums
//     masked words   logits = LN(act(dense x)) E^T + bias
//     classes        logits = head(drop(tanh(pooler x[:,0]))); numbers likewise
//     embedding      mean of x over the words that are there, of length 1 (Reimers and Gurevych,
//                    arXiv 1908.10084)
#include "core/errors.h"
#include "core/torch.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

class Encoder : public Model {
 public:
  struct Options : StackOptions {
    std::string head = "auto";
    bool pooler = false;

    Options() { pre_norm = false, bias = true, norm_eps = 1e-12; }
    void visit(Fields& f) override {
      StackOptions::visit(f);
      f("head", head,
        "what is asked of it; values: numbers; auto: classes or values where the data have some, "
        "else masked",
        one_of({"auto", "masked", "classes", "values", "embedding"}));
      f("pooler", pooler,
        "a layer over the first token, as BERT has it, that no head but classes and values reads");
    }
    void check_data(const DataShape& data, const Complain& complain) const override {
      check_alone(data, complain);
      if (data.targets_follow)
        complain("kind",
                 "an encoder sees what follows, and in these data that is what it is asked; a "
                 "decoder sees none of it, and of words `data.objective: masked` hides some");
      if (data.targets_are_ids)
        complain("kind",
                 "an encoder would copy what it is asked, its own input; use kind: decoder with "
                 "head: bottleneck");
    }
    Init init() const override { return Init::kPlain; }
  };

  Encoder(const Options& options, const DataShape& data) : options_(options), data_(data) {
    require_data(data.vocabulary > 0, "an encoder reads tokens");
    if (options_.head == "auto")
      options_.head = data.classes > 0 ? "classes" : data.values > 0 ? "values" : "masked";
    auto embed = register_module("embed", std::make_shared<torch::nn::Module>("embed"));
    token_ = embedding_table(*embed, "token", data.vocabulary, options.d_model, kStd, data.pad);
    stack_ = &add_stack(*embed, options, {}, data.context);
    segment_ = embedding_table(*embed, "segment", 2, options.d_model, kStd);
    norm_ = embed->register_module("norm", Norm(options));
    if (options_.head == "masked") make_masked();
    if (answers()) make_answers();
    if (options_.pooler || answers()) make_pooler();
    aim_at_heads();
  }

  Tensor embedding() const override { return token_; }
  bool predicts() const override { return options_.head != "embedding"; }
  Tensor unembedding() const override { return options_.head == "masked" ? token_ : Tensor(); }
  int64_t context() const override { return data_.context; }
  double flops_per_token() const override {
    const auto D = static_cast<double>(options_.d_model);
    const auto V = static_cast<double>(data_.vocabulary), T = static_cast<double>(data_.context);
    const double head = options_.head == "masked" ? 2 * D * (D + V)
                        : answers() ? 2 * D * (D + static_cast<double>(data_.answers())) / T
                                    : 0;
    return head + stack_->flops(data_.context, 0, /*causal=*/false) / T;
  }

 private:
  static constexpr double kStd = 0.02;

  // Something about the whole example.
  bool answers() const { return options_.head == "classes" || options_.head == "values"; }

  void make_masked() {
    auto head = register_module("head", std::make_shared<torch::nn::Module>("head"));
    dense_ = head->register_module("dense", Linear(options_.d_model, options_.d_model));
    init_normal(dense_, kStd);
    head_norm_ = head->register_module("norm", Norm(options_));
    head_bias_ = head->register_parameter("bias", at::zeros({data_.vocabulary}));
  }
  void make_answers() {
    require_answers(options_.head, data_);
    head_ = register_module("head", Linear(options_.d_model, data_.answers()));
    init_normal(head_, kStd);
  }
  void make_pooler() {
    pooler_ = register_module("pooler", Linear(options_.d_model, options_.d_model));
    init_normal(pooler_, kStd);
  }

  Tensor drop(const Tensor& x, const ModelContext& ctx, int64_t layer) const {
    return drop_beside_blocks(x, is_training() ? options_.dropout : 0, ctx.rng, layer);
  }

  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    TORCH_CHECK(batch.ids.defined() && batch.ids.dim() == 2, "an encoder reads ids [B,T]");
    const auto embed = [&](int64_t past) {
      const auto words = token_embedding(token_, batch.ids, data_.pad);
      const auto segments =
          batch.segment.defined() ? at::embedding(segment_, batch.segment) : segment_[0];
      return drop(norm_(stack_->at_places(words + segments, past)), ctx, -1);  // [B,T,D]
    };
    const auto x = stack_->forward(embed, {.batch = batch}, ctx, aux);  // [B,T,D]
    if (answers())
      return head_(drop(at::tanh(pooler_(x.select(1, 0))), ctx, -2));  // [B,classes], or [B,values]
    if (options_.head == "embedding") return mean_embedding(x, batch.length);
    const auto asked = ctx.scored_only ? scored_rows(x, batch.targets) : x;  // [n,D], or [B,T,D]
    return project(head_norm_(activate(options_.mlp, dense_(asked))), token_, head_bias_);
  }

  Options options_;
  DataShape data_;
  Tensor token_, segment_, head_bias_;
  Stack* stack_ = nullptr;
  Norm norm_{nullptr}, head_norm_{nullptr};
  Linear dense_{nullptr}, pooler_{nullptr}, head_{nullptr};
};

const RegisterModel<Encoder> encoder_model(
    "encoder", "BERT: masked words, classes of texts, embeddings of sentences");

}  // namespace
}  // namespace headlab
