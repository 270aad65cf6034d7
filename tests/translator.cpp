// A model of several sites with data that it learns from, in a program that is the whole of headlab
// beside them: an encoder of one block reads a string, a decoder of one block writes it backwards.
#include <vector>

#include "core/torch.h"
#include "experiments/data/tasks/synthetic.h"
#include "experiments/models/stack.h"

namespace headlab {
namespace {

struct EncoderSide : StackOptions {
  std::string name() const override { return "encoder"; }
  std::string site() const override { return "encoder_self"; }
};

struct DecoderSide : StackOptions {
  KindBlock cross_attention{head_registry(), "mha"};
  void visit(Fields& f) override {
    StackOptions::visit(f);
    f(kCrossSite, cross_attention, "heads that look at what the encoder read");
  }
  std::string name() const override { return "decoder"; }
  std::string site() const override { return "decoder_self"; }
  const KindBlock* cross() const override { return &cross_attention; }
  HeadDemands demands(int64_t layer) const override {
    auto demands = StackOptions::demands(layer);
    demands.causal = true, demands.bidirectional = false;
    return demands;
  }
};

class Translator : public Model {
 public:
  struct Options : ModelOptions {
    EncoderSide encoder;
    DecoderSide decoder;
    void visit(Fields& f) override {
      f("encoder", encoder, "what reads");
      f("decoder", decoder, "what writes");
    }
    std::vector<std::shared_ptr<const StackOptions>> stacks() const override {
      return {{std::shared_ptr<void>(), &encoder}, {std::shared_ptr<void>(), &decoder}};
    }
  };

  Translator(const Options& options, const DataShape& data) : context_(data.context) {
    const StackInputs reads{.tokens = &Batch::source, .length = &Batch::source_length};
    const StackInputs writes{.memory_tokens = &Batch::source,
                             .memory_length = &Batch::source_length};
    encoder_ = &add(options.encoder, reads, data.source_vocabulary, data.source_context, source_);
    decoder_ = &add(options.decoder, writes, data.vocabulary, data.context, target_);
  }
  Tensor unembedding() const override { return target_; }
  int64_t context() const override { return context_; }
  bool writes() const override { return true; }
  double flops_per_token() const override {
    return (encoder_->flops(context_, 0, false) + decoder_->flops(context_, context_, true)) /
           static_cast<double>(context_);
  }

 private:
  Stack& add(const StackOptions& options, const StackInputs& inputs, int64_t vocabulary,
             int64_t context, Tensor& table) {
    auto part = register_module(options.name(), std::make_shared<torch::nn::Module>());
    auto embed = part->register_module("embed", std::make_shared<torch::nn::Module>());
    table = embedding_table(*embed, "token", vocabulary, options.d_model, 0.02);
    return add_stack(*embed, options, inputs, context);
  }
  Tensor compute(const Batch& batch, const ModelContext& ctx, std::vector<AuxLoss>& aux) override {
    const auto read = [&](int64_t past) {
      return encoder_->at_places(at::embedding(source_, batch.source), past);
    };
    const auto write = [&](int64_t past) {
      return decoder_->at_places(at::embedding(target_, batch.ids), past);
    };
    const auto memory = encoder_->forward(read, {.batch = batch}, ctx, aux);
    return project(
        decoder_->forward(write, {.batch = batch, .causal = true, .memory = memory}, ctx, aux),
        target_);  // [B,T,V]
  }

  int64_t context_;
  Tensor source_, target_;
  Stack *encoder_ = nullptr, *decoder_ = nullptr;
};

const RegisterModel<Translator> translator("translator", "an encoder and a decoder, for tests");

// Strings of symbols 2.., of half the context at least, padded by 0; targets begin behind 1.
class Backwards : public DataSource {
 public:
  struct Options : SyntheticOptions {};
  explicit Backwards(const Options& options) : options_(options) {}

  int64_t vocabulary() const override { return options_.symbols; }
  int64_t context() const override { return options_.context; }
  DataShape shape() const override {
    return {.vocabulary = vocabulary(),
            .context = context(),
            .source_vocabulary = vocabulary(),
            .source_context = context(),
            .pad = 0};
  }
  Batch train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const override {
    return batch(count, [&](int64_t n) { return example_bits(seed, step, first + n) & ~1ull; });
  }
  int64_t examples(Split) const override { return options_.eval_examples; }
  Batch eval_batch(Split split, int64_t first, int64_t count) const override {
    const auto seed = static_cast<uint64_t>(split);
    return batch(count, [&](int64_t n) { return example_bits(seed, 0, first + n) | 1; });
  }

 private:
  Batch batch(int64_t count, const std::function<uint64_t(int64_t)>& bits) const {
    Batch made = empty_batch(count, context());
    made.ids.zero_(), made.targets.fill_(kIgnored);
    made.source = at::zeros_like(made.ids);
    made.length = at::zeros({count}, at::kLong);
    for (int64_t n = 0; n < count; ++n) {
      Draws draws(bits(n));
      const int64_t length = draws.between(context() / 2, context());
      made.length[n] = length;
      auto source = made.source[n], ids = made.ids[n], targets = made.targets[n];
      for (int64_t t = 0; t < length; ++t) source[t] = draws.between(2, vocabulary() - 1);
      targets.narrow(0, 0, length).copy_(source.narrow(0, 0, length).flip(0));
      ids[0] = 1;
      ids.narrow(0, 1, length - 1).copy_(targets.narrow(0, 0, length - 1));
    }
    made.source_length = made.length.clone();
    return made;
  }

  Options options_;
};

const RegisterData<Backwards> backwards("backwards", "strings and the same backwards, for tests");

}  // namespace
}  // namespace headlab
