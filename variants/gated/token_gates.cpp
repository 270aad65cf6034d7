#include "variants/gated/token_gates.h"

#include "core/torch.h"

namespace headlab {

void TokenGateOptions::visit(Fields& f) {
  f("granularity", granularity, "sigmoid: a gate a head, or an element of it",
    one_of({"head", "element"}));
  f("gate_bias", bias, "sigmoid: with bias");
  f("position", position,
    "sigmoid: what is gated: outputs of heads, values, keys, queries, or what the layer says",
    one_of({"output", "value", "key", "query", "layer"}));
  f("shared", shared,
    "sigmoid: the heads have gates of their own, the mean of these, or one set of weights",
    one_of({"none", "scores", "weight"}));
  f("additive", additive, "sigmoid: is added instead of multiplied");
  f("activation", activation, "sigmoid: of the gate", one_of({"sigmoid", "silu"}));
  f("input_dims", input_dims, "sigmoid: it reads so many first features of the input; 0: all",
    at_least(0));
}

void TokenGateOptions::check(const HeadTraits& inner, const std::string& kind, bool is_set,
                             const Complain& complain) const {
  if (!is_set) {
    const TokenGateOptions untouched;
    const auto wants = [&](const char* field, bool is_default) {
      if (!is_default) complain(field, "needs gate: sigmoid");
    };
    if (by_element()) complain("granularity", "'element' needs gate: sigmoid");
    wants("position", position == untouched.position);
    wants("shared", shared == untouched.shared);
    wants("additive", !additive);
    wants("activation", activation == untouched.activation);
    wants("input_dims", input_dims == 0);
    return;
  }
  if (of_layer() && !by_element())
    complain("granularity", "what a layer says has no heads; choose element");
  if (of_layer() && shared != "none")
    complain("shared", "what a layer says has no heads that could share a gate; choose none");
  if (!of_layer() && position != "output" && !inner.plain_projections)
    complain("position", "'" + kind + "' heads have no plain projections of queries, keys and " +
                             "values; choose output or layer");
}

int64_t TokenGateOptions::heads(const HeadShape& shape) const {
  if (of_layer() || shared == "weight") return 1;
  return of_source() ? shape.kv_heads : shape.heads;
}

int64_t TokenGateOptions::width(const HeadShape& shape, int64_t value_width) const {
  if (of_layer()) return shape.d_model;
  if (!by_element()) return 1;
  return position == "key" || position == "query" ? shape.head_dim : value_width;
}

HeadAxes TokenGateOptions::axes() const {
  if (of_layer() || shared == "weight") return shared_by_heads();
  return of_source() ? rows_of_kv_heads() : rows_of_heads();
}

Tensor token_gates(const TokenGateOptions& options, const Tensor& made, int64_t heads,
                   const Tensor& alive) {
  const auto z = split_heads(made, heads);  // [B,n,T,w]
  const auto s = options.activation == "silu" ? at::silu(z) : at::sigmoid(z);
  if (options.shared != "scores" || heads == 0) return s;
  if (!alive.defined()) return s.mean(1, /*keepdim=*/true).expand_as(s);
  const auto there = alive.to(s.scalar_type()).view({1, -1, 1, 1});
  return ((s * there).sum(1, /*keepdim=*/true) / there.sum().clamp_min(1)).expand_as(s);
}

HeadCall with_token_gates(const TokenGateOptions& options, const Tensor& s, const HeadCall& call) {
  auto own = call;
  const auto shape = [&](Affine& of) {
    of = (options.additive ? Affine{.offset = s} : Affine{.scale = s}).before(of);
  };
  if (options.position == "query") return shape(own.shaping.q), own;
  if (options.position == "key") return shape(own.shaping.k), own;
  if (options.position == "value") return shape(own.shaping.v), own;
  const auto gate = s.size(3) == 1 ? s.squeeze(3) : s;
  if (!options.additive) return call.with_gates(gate);
  // Gates of the context are outermost: a head that they silence says nothing.
  const auto& outer = call.gates;
  const auto added = outer.defined() ? s * (outer.dim() == 4 ? outer : outer.unsqueeze(-1)) : s;
  own.offset = call.offset.defined() ? call.offset + added : added;
  return own;
}

}  // namespace headlab
