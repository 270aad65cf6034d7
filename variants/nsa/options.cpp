#include "variants/nsa/options.h"

#include <fmt/format.h>

namespace headlab {

void NsaOptions::visit(Fields& f) {
  f("block", block, "tokens of a block that is selected", at_least(1));
  f("compress_block", compress_block, "tokens of a compressed block", at_least(1));
  f("stride", stride, "tokens from one compressed block to the next", at_least(1));
  f("selected", selected, "blocks that a query sees in full", at_least(1));
  f("first_blocks", first_blocks, "of these the first of the sequence", at_least(0));
  f("local_blocks", local_blocks, "of these the last, the query's own included", at_least(0));
  f("window_tokens", window_tokens, "tokens of the window, the query included", at_least(1));
  f("compress", compress, "what makes one key and value of a compressed block",
    one_of({"mean", "weighted", "linear", "mlp"}));
  f("compress_positions", compress_positions,
    "learned positions inside a compressed block (default: unless compress is mean)");
  f("compress_hidden", compress_hidden,
    "hidden features of compress: mlp (default: compress_block head_dim)", at_least(1));
  f("compress_rope", compress_rope,
    "compressed keys are of turned keys (tokens), or turn as their first token (blocks)",
    one_of({"tokens", "blocks"}));
  f("branch_kv", branch_kv, "one key and value of a token, or one for each branch",
    one_of({"shared", "separate"}));
  f("gate_bias", gate_bias, "bias on the gates of the branches");
  MhaOptions::visit(f);
}

void NsaOptions::derive(const HeadShape& shape) {
  compress_positions = positions();
  if (compress == "mlp")
    compress_hidden = compress_hidden.value_or(compress_block * shape.head_dim);
}

HeadTraits NsaOptions::traits() const {
  HeadTraits t{.masks = HeadMasks::kKeys, .grouped = true};
  t.windows = t.biases = t.bidirectional = t.cross = t.inputs = false;
  return t;
}

void NsaOptions::check(const Complain& complain) const {
  if (compress_block > block)
    complain("compress_block",
             fmt::format("{} tokens are more than the {} of a block; choose at most {}",
                         compress_block, block, block));
  if (compress_block % stride != 0 || block % stride != 0)
    complain("stride", fmt::format("{} must divide compress_block ({}) and block ({})", stride,
                                   compress_block, block));
  if (selected < first_blocks + local_blocks)
    complain("selected",
             fmt::format("{} blocks are fewer than the {} that every query sees (first_blocks + "
                         "local_blocks); choose at least {}",
                         selected, first_blocks + local_blocks, first_blocks + local_blocks));
  if (compress_hidden && compress != "mlp")
    complain("compress_hidden", "compress: " + compress + " has no hidden features; leave it out");
}

}  // namespace headlab
