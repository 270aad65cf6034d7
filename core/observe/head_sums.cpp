#include "core/observe/head_sums.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

#include "core/observe/row_stream.h"
#include "core/torch.h"

namespace headlab {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double mean(double sum, double count) { return count > 0 ? sum / count : kNaN; }

void add_all(std::vector<double>& to, const std::vector<double>& from) {
  for (size_t n = 0; n < from.size(); ++n) to[n] += from[n];
}

void add_own(HeadSums::Own& to, const HeadSums::Own& from) {
  if (to.sums.empty()) {
    to.sums = from.sums, to.counts = from.counts;
    return;
  }
  TORCH_CHECK(from.sums.empty() || from.sums.size() == to.sums.size(), "statistic '", to.name,
              "' has ", to.sums.size(), " values in one part and ", from.sums.size(),
              " in another");
  for (size_t n = 0; n < from.sums.size(); ++n)
    to.add(static_cast<int64_t>(n), from.sums[n], from.counts[n]);
}

// The commonest argmax offset and its share; ties: the smaller |r|, then the negative one.
std::pair<double, double> commonest(const OffsetRows& offsets, int64_t head) {
  int64_t rows = 0, most = 0, best = 0;
  for (int64_t r = -offsets.reach; r <= offsets.reach; ++r) {
    const int64_t n = offsets.at(head, r);
    rows += n;
    if (n > most || (n == most && std::abs(r) < std::abs(best))) most = n, best = r;
  }
  if (rows == 0) return {kNaN, kNaN};
  return {static_cast<double>(most) / static_cast<double>(rows), static_cast<double>(best)};
}

void add_offsets(OffsetRows& total, const RowSlots& slots, const std::vector<int64_t>& head_ids) {
  const std::span<const int32_t> offsets(slots.offsets, slots.count() * kRowsPerSlot);
  int64_t reach = 0;  // once, not as rows come
  for (const int64_t r : offsets)
    if (r != kNoRow) reach = std::max(reach, std::abs(r));
  total.widen(reach);
  for (int64_t n = 0; n < std::ssize(offsets); ++n)
    if (offsets[n] != kNoRow)
      total.add(head_ids[n / kRowsPerSlot / slots.blocks % slots.H], offsets[n]);
}

void add_divergence(HeadSums& total, const RowSlots& slots, const std::vector<int64_t>& head_ids) {
  const int64_t pairs = slots.H * slots.H;
  for (int64_t n = 0; n < slots.B * slots.groups * pairs; ++n) {
    const int64_t to = head_ids[n % pairs / slots.H] * total.heads + head_ids[n % slots.H];
    total.js[to] += slots.js[n];
    total.js_counts[to] += slots.js_counts[n];
  }
}

std::vector<double> own_values(const HeadSums::Own& own, const HeadSums& s) {
  std::vector<double> values;
  const int64_t each = s.heads > 0 ? std::ssize(own.sums) / s.heads : 0;  // numbers of a head
  for (int64_t n = 0; n < std::ssize(own.sums); ++n) {
    const bool gone = (own.per != Per::kLayer && !s.alive[n / each]) ||
                      (own.per == Per::kPair && !s.alive[n % each]);
    const double value = own.reduce == Reduce::kMaximum && own.counts[n] > 0
                             ? own.sums[n]
                             : mean(own.sums[n], own.counts[n]);
    values.push_back(gone ? kNaN : value);
  }
  return values;
}

}  // namespace

void OffsetRows::widen(int64_t to) {
  if (to <= reach) return;
  std::vector<int64_t> wider(heads * (2 * to + 1));
  for (int64_t h = 0; h < heads; ++h)
    std::copy_n(rows.begin() + h * (2 * reach + 1), 2 * reach + 1,
                wider.begin() + h * (2 * to + 1) + to - reach);
  rows = std::move(wider), reach = to;
}

void OffsetRows::add(int64_t head, int64_t offset, int64_t count) {
  widen(std::abs(offset));
  rows[head * (2 * reach + 1) + reach + offset] += count;
}

void OffsetRows::add(const OffsetRows& more) {
  widen(more.reach);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t r = -more.reach; r <= more.reach; ++r) add(h, r, more.at(h, r));
}

int64_t OffsetRows::at(int64_t head, int64_t offset) const {
  return std::abs(offset) > reach ? 0 : rows[head * (2 * reach + 1) + reach + offset];
}

void HeadSums::Own::add(int64_t to, double sum, double count) {
  if (reduce == Reduce::kMean)
    sums[to] += sum;
  else if (count > 0)
    sums[to] = counts[to] > 0 ? std::max(sums[to], sum) : sum;
  counts[to] += count;
}

HeadSums::HeadSums(int64_t H, const std::vector<Statistic>& declared)
    : heads(H),
      sums(H * kRowStatistics),
      counts(H * kRowStatistics),
      maxima(H * kRowMaxima, -kInfinity),
      offsets(H),
      sink_examples(H),
      examples(H),
      js(H * H),
      js_counts(H * H),
      alive(H, true) {
  for (const auto& s : declared) {
    const std::vector<double> zeros(value_count(s.per, H, s.experts));
    own.push_back({s.name, s.per, s.reduce, zeros, zeros, s.map, s.of_rows});
    if (s.finish && std::find(finish.begin(), finish.end(), s.finish) == finish.end())
      finish.push_back(s.finish);
  }
}

void HeadSums::add(int64_t head, RowStatistic which, double sum, double count) {
  sums[head * kRowStatistics + which] += sum;
  counts[head * kRowStatistics + which] += count;
}

void HeadSums::raise(int64_t head, RowMaximum which, double value) {
  double& highest = maxima[head * kRowMaxima + which];
  highest = std::max(highest, value);
}

HeadSums::Own* HeadSums::find_own(const std::string& name) {
  const auto found =
      std::find_if(own.begin(), own.end(), [&](const Own& o) { return o.name == name; });
  return found == own.end() ? nullptr : &*found;
}

void add_sums(HeadSums& to, const HeadSums& from) {
  TORCH_CHECK(to.heads == from.heads, "sums of ", from.heads, " heads to those of ", to.heads);
  add_all(to.sums, from.sums), add_all(to.counts, from.counts);
  std::transform(from.maxima.begin(), from.maxima.end(), to.maxima.begin(), to.maxima.begin(),
                 [](double a, double b) { return std::max(a, b); });
  to.offsets.add(from.offsets);
  add_all(to.sink_examples, from.sink_examples), add_all(to.examples, from.examples);
  add_all(to.js, from.js), add_all(to.js_counts, from.js_counts);
  for (const auto& own : from.own) {
    if (auto* mine = to.find_own(own.name))
      add_own(*mine, own);
    else
      to.own.push_back(own);
  }
}

// Slots are joined in their order, so that neither threads nor devices change the order of a sum.
void add_rows(HeadSums& total, const RowSlots& slots, const std::vector<int64_t>& head_ids,
              bool places, double sink_threshold) {
  for (int64_t n = 0; n < slots.B * slots.H; ++n) {
    const int64_t head = head_ids[n % slots.H];
    double first = 0, rows = 0;
    for (int64_t slot = n * slots.blocks; slot < (n + 1) * slots.blocks; ++slot) {
      const auto [sums, counts, maxima] = slots.totals(slot);
      for (int s = 0; s < kRowStatistics; ++s) total.add(head, RowStatistic{s}, sums[s], counts[s]);
      for (int s = 0; s < kRowMaxima; ++s) total.raise(head, RowMaximum{s}, maxima[s]);
      first += sums[kFirstToken];
      rows += counts[kFirstToken];
    }
    if (rows == 0) continue;
    total.examples[head] += 1;
    total.sink_examples[head] += first / rows > sink_threshold;
  }
  if (places) add_offsets(total.offsets, slots, head_ids);
  add_divergence(total, slots, head_ids);
}

std::map<std::string, std::vector<double>> head_values(const HeadSums& s) {
  std::map<std::string, std::vector<double>> out;
  const auto& table = statistic_table();
  for (const auto& statistic : table)
    out[statistic.name].assign(value_count(statistic.per, s.heads), kNaN);
  for (int64_t h = 0; h < s.heads; ++h) {
    if (!s.alive[h]) continue;
    for (int n = 0; n < kRowStatistics; ++n)
      out[table[n].name][h] =
          mean(s.sums[h * kRowStatistics + n], s.counts[h * kRowStatistics + n]);
    for (int n = 0; n < kRowMaxima; ++n) {
      const double highest = s.maxima[h * kRowMaxima + n];
      out[table[kRowStatistics + n].name][h] = highest > -kInfinity ? highest : kNaN;
    }
    std::tie(out["positional_share"][h], out["positional_offset"][h]) = commonest(s.offsets, h);
    out["sink_rate"][h] = mean(s.sink_examples[h], s.examples[h]);
    for (int64_t g = h * s.heads; g < (h + 1) * s.heads; ++g)
      if (s.alive[g % s.heads]) out["js"][g] = mean(s.js[g], s.js_counts[g]);
  }
  for (const auto& own : s.own) out[own.name] = own_values(own, s);
  for (const auto complete : s.finish) complete(s.heads, out);
  return out;
}

}  // namespace headlab
