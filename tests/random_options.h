// Options of a kind of heads drawn at random, as a config writes them: what a kind may be asked is
// what its `visit` names, so that a new option is drawn without a word here.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/config/config_fields.h"
#include "tests/heads_testing.h"

namespace headlab::testing {

// Draws that are the same on every machine.
class Draws {
 public:
  explicit Draws(uint64_t seed) : engine_(seed) {}
  int64_t pick(int64_t first, int64_t last) {
    return first + static_cast<int64_t>(engine_() % static_cast<uint64_t>(last - first + 1));
  }
  bool coin(double chance = 0.5) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < chance; }
  template <class List>
  const auto& one_of(const List& list) {
    return list[static_cast<size_t>(pick(0, std::ssize(list) - 1))];
  }

 private:
  std::mt19937_64 engine_;
};

using Written = std::optional<std::string>;  // a value as YAML; none: nothing is drawn for it
inline std::string drawn_options(Draws& draw, Block& block);

inline std::string drawn_integer(Draws& draw, const Limits& limits) {
  const auto first = static_cast<int64_t>(limits.min.value_or(0)) + (limits.above_min ? 1 : 0);
  const auto last = std::min(first + 4, static_cast<int64_t>(limits.max.value_or(1e9)));
  return std::to_string(draw.pick(first, last));
}

// With the bounds themselves, and with 0 and less where nothing forbids them.
inline std::string drawn_number(Draws& draw, const Limits& limits) {
  const double low = limits.min.value_or(-0.4),
               high = limits.max ? *limits.max : std::max(low, 0.0) + 1.2;
  const auto n = static_cast<double>(
      draw.pick(limits.above_min ? 1 : 0, limits.max && limits.below_max ? 5 : 6));
  return shortest(std::round((low + (high - low) * n / 6) * 100) / 100);
}

// One of the forms in which a value of its own syntax may be written.
class DrawnForm : public Forms {
 public:
  explicit DrawnForm(Draws& draw) : draw_(draw) {}
  Written value() { return forms_.empty() ? Written() : draw_.one_of(forms_)(); }

  void integer(const Limits& limits) override {
    forms_.emplace_back([this, limits] { return drawn_integer(draw_, limits); });
  }
  void number(const Limits& limits) override {
    forms_.emplace_back([this, limits] { return drawn_number(draw_, limits); });
  }
  void word(const std::vector<std::string>& words) override {
    forms_.emplace_back([this, words] { return draw_.one_of(words); });
  }
  void mapping(Block& block) override {
    const auto drawn = drawn_options(draw_, block);
    if (!drawn.empty()) forms_.emplace_back([drawn] { return "{" + drawn.substr(2) + "}"; });
  }
  void kind(const std::string& kind, Block& options, bool /*usual*/) override {
    const auto drawn = "{kind: " + kind + drawn_options(draw_, options) + "}";
    forms_.emplace_back([drawn] { return drawn; });
  }
  void kinds(const KindRegistry& registry, const std::string& /*usual*/) override {
    const auto names = registry.names();
    const auto& name = draw_.one_of(names);
    kind(name, *registry.options(name), false);
  }

 private:
  Draws& draw_;
  std::vector<std::function<std::string()>> forms_;
};

inline Written drawn_value(Draws& draw, const BlockField& field) {
  if (field.custom) {
    DrawnForm form(draw);
    field.custom->forms(form);
    return form.value();
  }
  if (field.block) {
    const auto drawn = drawn_options(draw, *field.block);
    return drawn.empty() ? Written() : "{" + drawn.substr(2) + "}";
  }
  const auto one = [&]() -> std::string {
    if (!field.limits.one_of.empty()) return draw.one_of(field.limits.one_of);
    if (field.type == "bool") return draw.coin() ? "true" : "false";
    return field.type == "integer" ? drawn_integer(draw, field.limits)
                                   : drawn_number(draw, field.limits);
  };
  const bool drawable = !field.limits.one_of.empty() || field.type == "bool" ||
                        field.type == "integer" || field.type == "number";
  if (!drawable) return {};  // a text, a path
  if (field.list) return "[" + one() + ", " + one() + "]";
  return one();
}

// The longest sequence that a layer can take is none: calls are not drawn by it.
inline bool is_drawn(const BlockField& field) { return field.name != "length"; }

// ", name: value, ..." of a part of the fields, which need not be acceptable.
inline std::string drawn_options(Draws& draw, Block& block) {
  std::string all;
  for (const auto& field : fields_of(block))
    if (draw.coin(0.25) && is_drawn(field))
      if (const auto value = drawn_value(draw, field)) all += ", " + field.name + ": " + *value;
  return all;
}

// The layer of `options`, whose weights and their float32 and bfloat16 copies are alike.
inline std::shared_ptr<AttentionHeads> drawn_layer(const std::string& kind, const HeadShape& shape,
                                                   const std::string& options, uint64_t seed) {
  const auto heads = make_layer(kind, shape, options, static_cast<int64_t>(seed));
  at::NoGradGuard no_grad;
  for (auto& p : heads->parameters()) p.copy_(p.to(at::kBFloat16));
  return heads;
}

inline bool is_accepted(const std::string& kind, const HeadShape& shape,
                        const std::string& options) {
  try {
    make_layer(kind, shape, options);
    return true;
  } catch (const ConfigError&) {  // any other error is a fault
    return false;
  }
}

// Options that the kind accepts in a layer of this shape: what is refused beside those before it is
// left out.
inline std::string accepted_options(Draws& draw, const std::string& kind, const HeadShape& shape) {
  std::string all;
  const auto block = head_registry().options(kind);
  for (const auto& field : fields_of(*block)) {
    if (!is_drawn(field) || !draw.coin(0.3)) continue;
    const auto value = drawn_value(draw, field);
    if (!value) continue;
    const auto more = all + ", " + field.name + ": " + *value;
    if (is_accepted(kind, shape, more)) all = more;
  }
  return all;
}

}  // namespace headlab::testing
