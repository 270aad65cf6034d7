#include "experiments/pretrained/foreign_weights.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/torch.h"

namespace headlab {
namespace {

constexpr int64_t kPieceNumbers = int64_t{1} << 20;

// Masks of GPT-2 and counters that are no weights, places that are computed.
bool is_no_weight(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("position_ids") || name.ends_with("rotary_emb.inv_freq") ||
         name.ends_with("embed_positions.weight");
}

std::vector<int64_t> without_ones_before(std::vector<int64_t> shape) {
  while (shape.size() > 1 && shape.front() == 1) shape.erase(shape.begin());
  return shape;
}

// Kernels of patches [D,C,P,P] are rows [D,C*P*P] here; others have one example more, [1,...].
bool same_shape(const std::vector<int64_t>& theirs, const std::vector<int64_t>& meant) {
  const auto a = without_ones_before(theirs), b = without_ones_before(meant);
  return a == b || (theirs.size() == 4 && b.size() == 2 && theirs[0] == b[0] &&
                    theirs[1] * theirs[2] * theirs[3] == b[1]);
}

// Of parameters that lie behind each other in the tensor of a file.
void copy_rows(const WeightFiles& files, const ForeignTensor& rule, const NamedTensors& ours) {
  int64_t begin = 0;
  for (const auto& name : rule.ours) {
    const auto& to = ours.at(name);
    files.read(rule.name, begin, to);
    begin += to.numel();
  }
}

// Of matrices that lie side by side in it, each transposed: some of its rows at a time.
void copy_transposed(const WeightFiles& files, const ForeignTensor& rule,
                     const NamedTensors& ours) {
  const int64_t inputs = rule.shape[0], outputs = rule.shape[1];
  const int64_t rows = std::max<int64_t>(1, kPieceNumbers / outputs);
  const auto like = ours.at(rule.ours.front()).options();
  for (int64_t first = 0; first < inputs; first += rows) {
    const int64_t n = std::min(rows, inputs - first);
    const auto piece = at::empty({n, outputs}, like);
    files.read(rule.name, first * outputs, piece);
    int64_t begin = 0;
    for (const auto& name : rule.ours) {
      const auto& to = ours.at(name);  // [out,in]
      to.narrow(1, first, n).copy_(piece.narrow(1, begin, to.size(0)).t());
      begin += to.size(0);
    }
  }
}

bool equals(const WeightFiles& files, const std::string& copy, const Tensor& source) {
  if (c10::multiply_integers(files.shapes().at(copy)) != source.numel()) return false;
  const auto row = source.view({-1});
  for (int64_t begin = 0; begin < row.numel(); begin += kPieceNumbers) {
    const auto n = std::min(kPieceNumbers, row.numel() - begin);
    const auto piece = at::empty({n}, row.options());
    files.read(copy, begin, piece);
    if (!at::equal(piece, row.narrow(0, begin, n))) return false;
  }
  return true;
}

class Taking {
 public:
  Taking(const WeightFiles& files, const HuggingFaceFamily& family,
         const std::vector<TiedNames>& tied, const NamedTensors& ours)
      : files_(files),
        family_(family),
        tied_(tied),
        ours_(ours),
        names_(files, family.prefix, tied) {}

  void fit(std::vector<ForeignTensor>& rules) {
    std::erase_if(rules, [&](const ForeignTensor& rule) {  // zeros where there is none
      return rule.name == "final_logits_bias" && !names_.contains(rule.name);
    });
    for (auto& rule : rules) {
      const auto* own = names_.find(rule.name);
      if (!own) {
        problems_.push_back(rule.name + " is missing");
        continue;
      }
      by_name_[rule.name] = rule.ours.front();
      rule.name = *own;
      rule.shape = files_.shapes().at(*own);
      taken_.insert(*own);
      if (const auto meant = shape_meant(rule, ours_); !same_shape(rule.shape, meant))
        problems_.push_back(fmt::format("{} is [{}], the settings mean [{}]", *own,
                                        fmt::join(rule.shape, ","), fmt::join(meant, ",")));
    }
    for (const auto& [name, shape] : files_.shapes())
      if (!taken_.contains(name) && !is_no_weight(name) && !leave_out(name) && !tied(name))
        problems_.push_back(name + " is not known here");
    raise();
  }

  std::vector<std::string> notices() const { return {notices_.begin(), notices_.end()}; }

  // Once the weights are there.
  void check_copies() {
    for (const auto& [name, shape] : files_.shapes())
      if (const auto* source = taken_.contains(name) || left_.contains(name) ? nullptr : tied(name))
        if (!equals(files_, name, ours_.at(by_name_.at(*source))))
          problems_.push_back(fmt::format("{} is tied to {} and yet another", name, *source));
    raise();
  }

 private:
  // What a tensor that no rule takes is a copy of.
  const std::string* tied(const std::string& name) const {
    for (const auto& names : tied_) {
      const auto is_it = [&](const std::string& member) {
        return member == name || member == family_.prefix + name;
      };
      if (std::none_of(names.begin(), names.end(), is_it)) continue;
      for (const auto& source : names)
        if (by_name_.contains(source)) return &source;
    }
    return nullptr;
  }
  // Whether it belongs to a part of which the model here has nothing; then it is said.
  bool leave_out(const std::string& name) {
    for (const auto& [beginning, what] : family_.left_out) {
      if (!name.starts_with(beginning) && !(family_.prefix + name).starts_with(beginning)) continue;
      const auto taken = by_name_.lower_bound(beginning);
      if (taken != by_name_.end() && taken->first.starts_with(beginning)) continue;
      notices_.insert(fmt::format("{}* is left out: {}", beginning, what));
      left_.insert(name);
      return true;
    }
    return false;
  }
  void raise() const {
    if (!problems_.empty()) files_.refuse(fmt::format("{}", fmt::join(problems_, "; ")));
  }

  const WeightFiles& files_;
  const HuggingFaceFamily& family_;
  const std::vector<TiedNames>& tied_;
  const NamedTensors& ours_;
  ForeignNames names_;
  std::set<std::string> taken_, left_;
  std::set<std::string> notices_;
  std::map<std::string, std::string> by_name_;  // names of rules -> ours
  std::vector<std::string> problems_;
};

}  // namespace

void sort_pairs(const Tensor& rows, int64_t head_dim) {
  auto pairs = rows.view({-1, head_dim / 2, 2, rows.numel() / rows.size(0)});
  const auto halves = pairs.transpose(1, 2).contiguous();
  rows.copy_(halves.view(rows.sizes()));
}

std::vector<int64_t> shape_meant(const ForeignTensor& rule, const NamedTensors& ours) {
  auto shape = ours.at(rule.ours.front()).sizes().vec();
  for (size_t i = 1; i < rule.ours.size(); ++i) shape[0] += ours.at(rule.ours[i]).size(0);
  if (rule.transposed) std::reverse(shape.begin(), shape.end());
  return shape;
}

std::vector<std::string> take_weights(const WeightFiles& files, const HuggingFaceFamily& family,
                                      const std::vector<TiedNames>& tied,
                                      std::vector<ForeignTensor>& rules, const NamedTensors& ours,
                                      std::optional<int64_t> interleaved_head_dim) {
  at::NoGradGuard no_grad;
  Taking taking(files, family, tied, ours);
  taking.fit(rules);
  for (const auto& rule : rules) {
    rule.transposed ? copy_transposed(files, rule, ours) : copy_rows(files, rule, ours);
    files.forget(rule.name);
    for (const auto& name : rule.ours)
      if (interleaved_head_dim && (name.find("attention.q.") != std::string::npos ||
                                   name.find("attention.k.") != std::string::npos))
        sort_pairs(ours.at(name), *interleaved_head_dim);
  }
  taking.check_copies();
  return taking.notices();
}

}  // namespace headlab
