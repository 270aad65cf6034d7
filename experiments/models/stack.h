// A stack of transformer blocks with the positions of what goes through it: what models are made
// of, with an embedding before it and a head behind it.
//
// B examples, T positions, S of the memory, D d_model.
#pragma once

#include "experiments/models/transformer_block.h"

namespace headlab {

// Which inputs of a batch stand at a stack's positions, and at those of the memory it looks at.
struct StackInputs {
  Tensor Batch::*tokens = &Batch::ids;
  Tensor Batch::*length = &Batch::length;
  Tensor Batch::*memory_tokens = nullptr;
  Tensor Batch::*memory_length = nullptr;
};

// The examples as one stack sees them.
struct StackCall {
  const Batch& batch;
  bool causal = false;
  Tensor memory = {};  // [B,S,D], where the stack has cross-attention
};

class Stack {
 public:
  // Registers, in this order: `position` or `relative` in `embed`; `blocks`, and `norm` behind them
  // where the options say so, in `model`. The options are those of a registered model's, copied.
  Stack(torch::nn::Module& model, torch::nn::Module& embed, const StackOptions& options,
        const StackInputs& inputs, int64_t context);

  // Embedded tokens at their places, past .. past + T - 1: [B,T,D] -> [B,T,D].
  Tensor at_places(const Tensor& tokens, int64_t past) const;
  // -> [B,T,D] behind the last block and norm. `embed` gives what goes into the first block, of
  // tokens `past` and on; it is not called where the pass goes on in a later one.
  using Embed = std::function<Tensor(int64_t past)>;
  Tensor forward(const Embed& embed, const StackCall& call, const ModelContext& ctx,
                 std::vector<AuxLoss>& aux);

  const std::string& name() const { return name_; }
  std::vector<TransformerBlock>& blocks() { return blocks_; }
  std::vector<Site> sites();
  // Where the heads of a site of this stack are: blocks.3.attention, decoder.blocks.0.cross.
  std::string layer_path(const std::string& site, int64_t layer) const;
  void exchange(const std::string& site, int64_t layer, std::shared_ptr<AttentionHeads> heads);
  // How many positions are learned; none: they are not.
  std::optional<int64_t> learned_places() const;
  // Forward FLOPs of one example of T positions, S of the memory; causal halved.
  double flops(int64_t T, int64_t S, bool causal);

 private:
  HeadContext self_call(const StackCall& call, const ModelContext& ctx,
                        const Tensor& positions) const;
  HeadContext cross_call(const StackCall& call, const ModelContext& ctx) const;
  StackLinks known_links(const ModelContext& ctx, int64_t first) const;
  std::unique_ptr<PositionBias> position_bias(bool causal, const Tensor& like) const;
  double attended_pairs(int64_t layer, int64_t T, bool causal) const;

  std::string name_, site_;
  PositionOption position_;
  StackInputs inputs_;
  bool scales_;
  int64_t heads_, context_;
  std::vector<int64_t> windows_;  // of each block
  Tensor places_weight_, relative_weight_;
  std::vector<std::optional<Rotary>> rotary_;  // of each layer
  std::vector<bool> biased_;                   // likewise, by the positions of the stack
  std::vector<TransformerBlock> blocks_;
  Norm norm_{nullptr};
};

// A table [rows,width] drawn N(0, std), as `name` in `embed`; gives its weight. The row of `pad` is
// 0.
Tensor embedding_table(torch::nn::Module& embed, const char* name, int64_t rows, int64_t width,
                       double std, std::optional<int64_t> pad = {});
// Rows of a table: ids [B,T] -> [B,T,D]. Through the row of `pad` goes no gradient, as in Hugging
// Face's embeddings.
Tensor token_embedding(const Tensor& table, const Tensor& ids, std::optional<int64_t> pad);
// Dropout of what goes into the first block (layer -1), or comes out of the last (-2).
Tensor drop_beside_blocks(const Tensor& x, double p, CounterRng rng, int64_t layer = -1);
// Those of x [B,T,D] whose targets [B,T] are >= 0, in order: [n,D].
Tensor scored_rows(const Tensor& x, const Tensor& targets);
// The mean of x [B,T,D] over the first length [B] positions (undefined: all), of length 1: [B,D].
Tensor mean_embedding(const Tensor& x, const Tensor& length);
// For a model's constructor: ConfigError, as in "an encoder reads tokens, which these data have
// not", where the data have no such thing.
void require_data(bool there, const std::string& reads);
// ConfigError where `head` is classes or values, and the data have none.
void require_answers(const std::string& head, const DataShape& data);

}  // namespace headlab
