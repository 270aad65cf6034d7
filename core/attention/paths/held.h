// What an autograd function keeps for its backward pass and gives no gradient to.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace headlab {

template <class Value>
struct Held : torch::CustomClassHolder {
  Value value;
  explicit Held(Value of) : value(std::move(of)) {}
};

template <class Value>
void hold(torch::autograd::AutogradContext* ctx, Value value) {
  ctx->saved_data["held"] =
      at::IValue::make_capsule(c10::make_intrusive<Held<Value>>(std::move(value)));
}

template <class Value>
const Value& held(torch::autograd::AutogradContext* ctx) {  // lives as long as the context
  return static_cast<const Held<Value>&>(*ctx->saved_data["held"].toCapsule()).value;
}

}  // namespace headlab
