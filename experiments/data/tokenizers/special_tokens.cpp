#include "experiments/data/tokenizers/special_tokens.h"

#include <algorithm>

namespace headlab {

SpecialTokens::SpecialTokens(std::vector<std::string> texts) : texts_(std::move(texts)) {
  for (size_t n = 0; n < texts_.size(); ++n) {
    if (texts_[n].empty()) continue;
    auto& numbers = beginning_[static_cast<unsigned char>(texts_[n][0])];
    if (numbers.empty()) first_bytes_ += texts_[n][0];
    numbers.push_back(static_cast<int64_t>(n));
    if (texts_[n].find_first_of(" \t\n\v\f\r") != std::string::npos) spaced_.push_back(texts_[n]);
  }
  for (auto& numbers : beginning_)
    std::ranges::stable_sort(numbers, std::greater(), [&](auto n) { return texts_[n].size(); });
}

SpecialTokens::Found SpecialTokens::next(std::string_view text, size_t from) const {
  for (size_t at = text.find_first_of(first_bytes_, from); at != text.npos;
       at = text.find_first_of(first_bytes_, at + 1))
    for (int64_t number : beginning_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(texts_[number])) return {at, number};
  return {};
}

bool SpecialTokens::stand_across(std::string_view text, size_t at) const {
  return std::ranges::any_of(spaced_, [&](const std::string& special) {
    for (size_t before = 1; before < std::min(special.size(), at + 1); ++before)
      if (text.substr(at - before).starts_with(special)) return true;
    return false;
  });
}

void SpecialTokens::for_each_part(std::string_view text,
                                  const std::function<void(TextRange, int64_t)>& take) const {
  for (size_t from = 0; from < text.size();) {
    const auto special = next(text, from);
    const size_t end = std::min(special.at, text.size());
    if (end > from) take({from, end}, -1);
    if (special.number < 0) return;
    from = end + texts_[special.number].size();
    take({end, from}, special.number);
  }
}

}  // namespace headlab
