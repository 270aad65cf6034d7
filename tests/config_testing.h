// Settings with a field of every type and a family of kinds, for the tests of the configuration.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/config.h"

namespace headlab::config_testing {

struct Inner : Block {
  bool on = false;
  int64_t every = 10;
  FilePath path;
  void visit(Fields& f) override {
    f("on", on, "whether");
    f("every", every, "steps between", at_least(1));
    f("path", path, "a file");
  }
};

struct Mha : Block {
  bool bias = true;
  std::optional<double> scale;
  void visit(Fields& f) override {
    f("bias", bias, "adds biases");
    f("scale", scale, "of the scores; derived from head_dim", above(0));
  }
};

struct Moh : Block {
  int64_t shared = 2, active = 2;
  void visit(Fields& f) override {
    f("shared", shared, "heads always on", at_least(0));
    f("active", active, "heads chosen by token", at_least(1));
  }
  void check(const Complain& complain) const override {
    if (active > 8) complain("active", "must not exceed the routed heads");
    if (shared > 8) complain("", "too many heads");
  }
};

struct Files : Block {
  FilePath path;
  void visit(Fields& f) override { f("path", path, "a file"); }
};

inline const KindRegistry& kinds();

// A kind that holds a kind of its own family.
struct Gated : Block {
  KindBlock inner{kinds(), "mha"};
  void visit(Fields& f) override { f("inner", inner, "the heads behind the gates"); }
};

struct Kinds : KindRegistry {
  std::vector<std::string> names() const override { return {"files", "gated", "mha", "moh"}; }
  std::shared_ptr<Block> options(const std::string& kind) const override {
    if (kind == "files") return std::make_shared<Files>();
    if (kind == "gated") return std::make_shared<Gated>();
    if (kind == "mha") return std::make_shared<Mha>();
    if (kind == "moh") return std::make_shared<Moh>();
    return nullptr;
  }
};

inline const KindRegistry& kinds() {
  static const Kinds all;
  return all;
}

// Every type of field.
struct Settings : Block {
  bool flag = false;
  int64_t steps = 2000;
  double lr = 1e-3;
  std::string name = "run";
  std::string schedule = "cosine";
  FilePath data;
  std::optional<bool> causal;
  std::optional<int64_t> window;
  std::optional<double> clip;
  std::vector<int64_t> layers;
  std::vector<double> betas{0.9, 0.95};
  std::vector<std::string> stats{"loss"};
  Inner log;
  KindBlock attention{kinds(), "mha"};

  void visit(Fields& f) override {
    f("flag", flag, "a switch");
    f("steps", steps, "training steps", at_least(1));
    f("lr", lr, "learning rate", above(0));
    f("name", name, "name of the run");
    f("schedule", schedule, "of the rate", one_of({"cosine", "linear", "constant"}));
    f("data", data, "training text");
    f("causal", causal, "masks the future");
    f("window", window, "keys seen", between(1, 100));
    f("clip", clip, "norm of the gradient", above(0));
    f("layers", layers, "which", at_least(0));
    f("betas", betas, "of Adam", from_below(0, 1));
    f("stats", stats, "which", one_of({"loss", "entropy", "all"}));
    f("log", log, "the log");
    f("attention", attention, "the heads");
  }
  void check(const Complain& complain) const override {
    if (steps == 13) complain("steps", "must not be 13");
    if (steps == 14) complain("window", "is due for 14 steps");
    if (steps == 15) complain("log.every", "must divide 15");
  }
};

inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

inline Settings read(const std::string& text) {
  Settings settings;
  read_config(settings, parse_config(text, "f.yaml", "/base"));
  return settings;
}

inline std::string message(const std::string& text) {
  return error_of([&] { read(text); });
}

inline std::string parse_message(const std::string& text) {
  return error_of([&] { parse_config(text, "f.yaml"); });
}

inline std::string repeat(const std::string& text, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace headlab::config_testing
