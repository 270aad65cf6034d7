// A whole model's file of expected numbers (`headlab_model`), beside the model itself in Hugging
// Face's layout: config.json and model.safetensors. Computes all that the inputs allow.
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/cases/model_of_case.h"
#include "experiments/data/task.h"
#include "experiments/inference/generate.h"
#include "experiments/inference/translate.h"
#include "experiments/models/intermediates.h"
#include "experiments/models/named_batch.h"

namespace headlab {
namespace {

constexpr int64_t kPrompt = 5, kContinued = 12, kTranslated = 20;

class ModelCase {
 public:
  ModelCase(const CaseFile& file, const Compute& compute)
      : file_(file),
        compute_(compute),
        // In the type in which rounding is nobody's.
        built_(model_of_case(file, at::kDouble, compute.device)) {
    batch_ = named_batch(file.name, file.tensors, built_.shape).to(compute.device);
  }

  NamedTensors compute() {
    NamedTensors computed;
    if (built_.kind != "seq2seq" || batch_.ids.defined()) {
      at::AutoGradMode grad(batch_.targets.defined());
      const auto pass = intermediates(*built_.model, batch_, compute_.backend);
      for (const auto& [name, tensor] : pass.tensors) computed[name] = tensor.detach();
      if (batch_.targets.defined()) add_losses(pass.output.logits, computed);
    }
    if (built_.kind == "decoder") add_continued(computed);
    if (built_.kind == "seq2seq") add_translated(computed);
    for (auto& [name, tensor] : computed) tensor = tensor.cpu();
    return computed;
  }

 private:
  // Of the loss, its gradients as the file's tensors have them, and the norm of all.
  double gradients_of(const Tensor& loss, NamedTensors* theirs) {
    built_.model->zero_grad();
    loss.backward({}, /*retain_graph=*/true);
    NamedTensors ours;
    auto squares = at::zeros({}, at::kDouble);
    for (const auto& item : built_.model->named_parameters()) {
      if (!item.value().grad().defined()) continue;
      ours[item.key()] = item.value().grad().detach().cpu().clone();
      squares += ours[item.key()].square().sum();
    }
    if (theirs)
      for (const auto& [name, tensor] : built_.named_as_theirs(ours))
        (*theirs)["grad." + name] = tensor.contiguous();
    return std::sqrt(squares.item<double>());
  }

  void add_losses(const Tensor& logits, NamedTensors& computed) {
    const auto& task = prediction_task();
    const auto scored = task.scored(batch_).clamp_min(1);
    const auto loss = task.loss(logits, batch_) / scored;
    computed["out.loss"] = loss.detach();
    computed["out.grad_norm"] = at::scalar_tensor(gradients_of(loss, &computed), at::kDouble);
    if (!file_.metadata.contains("label_smoothing")) return;
    const auto smoothed = task.loss(logits, batch_, file_.number("label_smoothing")) / scored;
    computed["out.loss_smoothed"] = smoothed.detach();
    computed["out.grad_norm_smoothed"] =
        at::scalar_tensor(gradients_of(smoothed, nullptr), at::kDouble);
  }

  // The first ids and the likeliest behind them.
  void add_continued(NamedTensors& computed) {
    at::NoGradGuard no_grad;
    const int64_t B = batch_.ids.size(0);
    if (batch_.ids.size(1) >= kPrompt) {
      std::vector<Tensor> rows;
      for (int64_t b = 0; b < B; ++b)
        rows.push_back(
            continued(*built_.model, batch_.ids[b].narrow(0, 0, kPrompt), kContinued, compute_));
      const auto ids = at::stack(rows);  // [B,17]
      const auto logits = built_.model->forward({.ids = ids.to(compute_.device)}, {}).logits.cpu();
      const auto ln_p = at::log_softmax(logits, -1)
                            .narrow(1, kPrompt - 1, kContinued)
                            .gather(2, ids.narrow(1, kPrompt, kContinued).unsqueeze(2));
      computed["out.greedy.ids"] = ids;
      computed["out.greedy.logprobs"] = ln_p.squeeze(2);  // [B,12]
    }
    if (!file_.metadata.contains("topk")) return;
    const auto [temperature, top_k] = file_.settings().topk();
    computed["out.topk.probs"] =
        likely(computed.at("out.logits").select(1, -1), temperature, top_k);
  }

  void add_translated(NamedTensors& computed) {
    struct Beam {
      const char* name;
      int64_t width;
      double power;
    };
    const int64_t longest = file_.settings().beam_length(kTranslated);
    for (const auto& beam :
         {Beam{"1.1", 1, 1}, Beam{"3.0", 3, 0}, Beam{"4.0.6", 4, 0.6}, Beam{"4.1", 4, 1}}) {
      const auto texts =
          translate(*built_.model, batch_, built_.shape,
                    {.width = beam.width, .power = beam.power, .max_length = longest}, compute_);
      int64_t widest = 0;
      for (const auto& text : texts) widest = std::max(widest, std::ssize(text.ids) + 1);
      auto ids = at::full({std::ssize(texts), widest}, *built_.shape.pad, at::kLong);
      std::vector<double> scores;
      for (int64_t n = 0; n < std::ssize(texts); ++n) {
        ids[n][0] = *built_.shape.start;
        ids[n].narrow(0, 1, std::ssize(texts[n].ids)).copy_(at::tensor(texts[n].ids, at::kLong));
        scores.push_back(texts[n].score);
      }
      computed[fmt::format("out.beam.{}.ids", beam.name)] = ids;
      computed[fmt::format("out.beam.{}.scores", beam.name)] = at::tensor(scores, at::kDouble);
    }
  }

  const CaseFile& file_;
  Compute compute_;
  HuggingFaceModel built_;
  Batch batch_;
};

// Where an input is padding, states and rows of maps are free: 0 in both.
void clear_padding(const CaseFile& file, NamedTensors& computed, NamedTensors& expected) {
  for (const std::string side : {"", "source_"}) {
    const auto mask = file.find("in." + side + "mask");
    if (!mask.defined()) continue;
    const std::string of = side.empty() ? "out." : "out.encoder.";
    for (auto* tensors : {&computed, &expected})
      for (auto& [name, tensor] : *tensors) {
        const auto padded = mask.eq(0);  // [B,T]
        if (name.starts_with(of + "attention."))
          tensor = tensor.masked_fill(padded.unsqueeze(1).unsqueeze(3), 0);
        else if (name.starts_with(of + "hidden.") || (side.empty() && name == "out.logits") ||
                 name == of + "final")
          tensor = tensor.masked_fill(padded.unsqueeze(2), 0);
      }
  }
}

// Published models of their full size are judged in the type that they were run in.
std::optional<NamedTensors> forward_numbers(const CaseFile& file, const Compute& compute) {
  const bool texts = std::ranges::any_of(file.tensors, [](const auto& tensor) {
    return tensor.first.ends_with(".ids") && tensor.first != "in.ids";
  });
  const bool sentences = file.metadata.contains("sentences");
  if (!texts && !sentences) return std::nullopt;
  auto made = model_of_case(file, at::kFloat, compute.device);
  return texts ? numbers_of_texts(file, made, compute) : numbers_of_sentences(file, made, compute);
}

Tolerance tolerance_of(const CaseFile& file, const Tensor& want) {
  if (at::isIntegralType(want.scalar_type(), true)) return {};
  if (want.scalar_type() == at::kHalf)
    return {.rtol = 0, .atol = 1e-3};  // half of its spacing at 1
  const bool narrow = want.scalar_type() == at::kFloat && file.metadata.contains("rtol_float32");
  const std::string suffix = narrow ? "_float32" : "";
  return {file.number("rtol" + suffix), file.number("atol" + suffix)};
}

Judged judge_model(const CaseFile& file, const at::Device& device, Backend backend) {
  bool free = false;  // what is padding is 0 in files of published models, and free in others
  auto computed = of_case(file.name, [&] {
    const Compute compute{device, backend};
    if (auto numbers = forward_numbers(file, compute)) return std::move(*numbers);
    free = true;
    return ModelCase(file, compute).compute();
  });
  auto compared = computed, expected = file.expected;
  if (free) clear_padding(file, compared, expected);
  std::vector<Verdict> verdicts;
  for (const auto& [name, want] : expected) {
    const auto found = compared.find(name);
    verdicts.push_back(judge(name, found == compared.end() ? Tensor() : found->second, want,
                             tolerance_of(file, want)));
  }
  return {std::move(computed), std::move(verdicts)};
}

const RegisterCase models({.name = "1", .judge = judge_model, .key = kModelKey});

}  // namespace
}  // namespace headlab
