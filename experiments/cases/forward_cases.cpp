// What whole models make of texts and sentences, by name: models.md's list of what is printed by
// the authors' code of SmolLM2 (texts, a chat, repeated tokens) and MiniLM (embedded sentences).
#include <fmt/format.h>

#include "core/torch.h"
#include "experiments/cases/model_of_case.h"
#include "experiments/models/intermediates.h"

namespace headlab {
namespace {

constexpr int64_t kContinued = 24;

class TextNumbers {
 public:
  TextNumbers(const CaseFile& file, HuggingFaceModel& made, const Compute& compute)
      : file_(file), made_(made), compute_(compute) {
    if (made.kind != "decoder")
      file.refuse("texts are for models that write; this is " + made.kind);
  }

  NamedTensors all() {
    at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : file_.tensors) {
      if (!name.starts_with("in.") || !name.ends_with(".ids")) continue;
      const auto text = name.substr(3, name.size() - 7);
      const auto ids = checked(name, tensor);
      if (text == "chat")
        computed_["out.chat.ids"] = continued(*made_.model, ids, kContinued, compute_);
      else if (text == "repeat")
        add_repeated(ids);
      else
        add_text("out." + text, ids);
    }
    return std::move(computed_);
  }

 private:
  Tensor checked(const std::string& name, const Tensor& tensor) const {
    if (tensor.dim() != 1 || tensor.numel() < 2 || !at::isIntegralType(tensor.scalar_type(), false))
      file_.refuse(name + " must be integers [T], two or more");
    if (tensor.numel() > made_.model->context())
      file_.refuse(
          fmt::format("{} is longer than the model's context of {}", name, made_.model->context()));
    const auto ids = tensor.to(at::kLong);
    if (ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= made_.shape.vocabulary)
      file_.refuse(fmt::format("{} must lie in 0 .. {}", name, made_.shape.vocabulary - 1));
    return ids;
  }

  // out.* of intermediates() without the batch's dimension.
  NamedTensors pass(const Tensor& ids) {
    auto made =
        intermediates(*made_.model, {.ids = ids.unsqueeze(0).to(compute_.device)}, compute_.backend)
            .tensors;
    for (auto& [name, tensor] : made) tensor = tensor.select(0, 0).cpu();
    return made;
  }
  // Of each id behind the first, [T-1].
  static Tensor nll(const Tensor& logits, const Tensor& ids) {
    const auto n = ids.numel() - 1;
    return at::cross_entropy_loss(logits.narrow(0, 0, n), ids.narrow(0, 1, n), {},
                                  at::Reduction::None);
  }

  void add_text(const std::string& prefix, const Tensor& ids) {
    for (auto& [name, tensor] : pass(ids)) {
      if (name == "out.logits") {
        computed_[prefix + ".nll"] = nll(tensor, ids);
        computed_[prefix + ".logits.last"] = tensor.select(0, -1).clone();
      } else {
        computed_[prefix + name.substr(3)] = tensor;
      }
    }
  }

  // An id, then the same random ones twice: how much each head looks from an id to the one behind
  // its first occurrence (Olsson et al., arXiv 2209.11895).
  void add_repeated(const Tensor& ids) {
    const auto made = pass(ids);
    computed_["out.repeat.nll"] = nll(made.at("out.logits"), ids);
    const int64_t period = (ids.numel() - 1) / 2, first = period + 2;
    if (first >= ids.numel()) return;
    std::vector<Tensor> layers;
    for (int64_t l = 0;; ++l) {
      const auto map = made.find(fmt::format("out.attention.{}", l));
      if (map == made.end()) break;
      layers.push_back(map->second.diagonal(1 - period, 1, 2)
                           .narrow(1, first - period + 1, ids.numel() - first)
                           .mean(1));
    }
    computed_["out.repeat.induction"] = at::stack(layers);  // [L,H]
  }

  const CaseFile& file_;
  HuggingFaceModel& made_;
  Compute compute_;
  NamedTensors computed_;
};

}  // namespace

NamedTensors numbers_of_texts(const CaseFile& file, HuggingFaceModel& made,
                              const Compute& compute) {
  return TextNumbers(file, made, compute).all();
}

NamedTensors numbers_of_sentences(const CaseFile& file, HuggingFaceModel& made,
                                  const Compute& compute) {
  at::NoGradGuard no_grad;
  const auto mask = file.at("in.mask").to(at::kLong), length = mask.sum(-1);
  const auto pass = intermediates(
      *made.model,
      Batch{.ids = file.at("in.ids").to(at::kLong), .length = length}.to(compute.device),
      compute.backend);
  std::vector<Tensor> hidden, maps;
  for (int64_t l = 0;; ++l) {
    const auto state = pass.tensors.find(fmt::format("out.hidden.{}", l));
    if (state == pass.tensors.end()) break;
    hidden.push_back(state->second.cpu());
    if (const auto map = pass.tensors.find(fmt::format("out.attention.{}", l));
        map != pass.tensors.end())
      maps.push_back(map->second.cpu());
  }
  const auto padded = mask.eq(0);  // [N,T]
  const auto last = hidden.back();
  NamedTensors computed;
  computed["out.hidden"] =
      at::stack(hidden, 1).masked_fill_(padded.unsqueeze(1).unsqueeze(3), 0);  // [N,L+1,T,D]
  const auto all =
      at::stack(maps, 1).masked_fill_(padded.unsqueeze(1).unsqueeze(2).unsqueeze(4), 0);
  computed["out.attention.f16"] = all.to(at::kHalf);  // [N,L,H,T,T]
  for (int64_t n = 0; n < all.size(0); ++n) {
    const auto T = length[n].item<int64_t>();
    computed[fmt::format("out.attention.{}", n)] =
        all[n].narrow(2, 0, T).narrow(3, 0, T).to(at::kFloat).contiguous();
  }
  const auto embedding = pass.output.logits.cpu();
  computed["out.embedding"] = embedding;
  computed["out.similarity"] = at::mm(embedding, embedding.t());
  const auto parameters = made.model->named_parameters();
  if (const auto* weight = parameters.find("pooler.weight"))
    computed["out.pooled"] =
        at::tanh(at::linear(last.select(1, 0), weight->cpu(), parameters["pooler.bias"].cpu()));
  return computed;
}

}  // namespace headlab
