#include "experiments/data/text_encoding.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "core/torch.h"
#include "experiments/data/part_encoder.h"
#include "experiments/system/growing_memory.h"
#include "experiments/system/signals.h"
#include "experiments/system/stopwatch.h"

namespace headlab {
namespace {

struct Part {
  std::string_view text;
  std::string ids = {};
  PartEncoder::Wrong wrong = {};
  std::exception_ptr error = {};  // anything else
};

// The threads that encode a text, each with what it remembers.
class Encoders {
 public:
  Encoders(const Tokenizer& tokenizer, const std::string& name, int threads, size_t bytes) {
    for (int n = 0; n < threads; ++n) encoders_.emplace_back(tokenizer, name, bytes);
  }

  // Each part once, by whoever is free.
  void encode(std::vector<Part>& parts) {
    std::atomic<size_t> next = 0;
    const auto work = [&](PartEncoder& encoder) {
      for (size_t n = next++; n < parts.size(); n = next++) {
        try {
          parts[n].wrong = encoder.encode(parts[n].text, parts[n].ids);
        } catch (...) {  // of a thread: thrown again by the one that waits for it
          parts[n].error = std::current_exception();
        }
      }
    };
    std::vector<std::jthread> others;
    try {
      for (size_t n = 1; n < std::min(encoders_.size(), parts.size()); ++n)
        others.emplace_back(work, std::ref(encoders_[n]));
    } catch (const std::system_error&) {  // the system gives no more: those that it gave do it
    }
    work(encoders_[0]);
  }

 private:
  std::vector<PartEncoder> encoders_;
};

}  // namespace

int encoding_threads() { return std::min(at::get_num_threads(), 16); }

void encode_in_parts(const Tokenizer& tokenizer, std::string_view text, const std::string& name,
                     const EncodingOptions& options,
                     const std::function<void(std::string_view)>& take) {
  constexpr size_t kAThread = 8;  // parts between two waits for each other
  Encoders encoders(tokenizer, name, options.threads, text.size());
  std::optional<LineError> wrong;  // the first one
  for (size_t at = 0; at < text.size();) {
    StopSignals::end_if_received();
    std::vector<Part> parts;
    while (at < text.size() && parts.size() < kAThread * static_cast<size_t>(options.threads)) {
      const size_t end = tokenizer.next_cut(text, at + std::max<size_t>(options.part, 1));
      parts.push_back({.text = text.substr(at, end - at)});
      at = end;
    }
    encoders.encode(parts);
    for (const auto& part : parts) {
      if (part.error) std::rethrow_exception(part.error);
      if (part.wrong.not_utf8) {
        decode_utf8(text, name, [](char32_t) {});  // says where
        throw NotUtf8(name + ": is not UTF-8");
      }
      if (wrong) continue;
      if (part.wrong.line)
        wrong = part.wrong.line->behind(std::count(text.data(), part.text.data(), '\n'));
      else
        take(part.ids);
    }
  }
  if (wrong) throw LineError(*wrong);
}

TokenIds encode_in_memory(const Tokenizer& tokenizer, std::string_view text,
                          const std::string& name, const EncodingOptions& options) {
  const auto memory = std::make_shared<GrowingMemory>();
  encode_in_parts(tokenizer, text, name, options,
                  [&](std::string_view ids) { memory->append(ids); });
  return TokenIds::in(memory->bytes(), id_width(tokenizer.vocabulary()), memory);
}

std::optional<EncodingCost> estimated_cost(const Tokenizer& tokenizer, std::string_view text,
                                           const EncodingOptions& options) {
  constexpr size_t kSamples = 8, kBytes = 64 << 10;
  PartEncoder encoder(tokenizer, "", kSamples * kBytes);
  std::string ids;
  size_t bytes = 0;
  const Stopwatch watch;
  for (size_t n = 0; n < kSamples; ++n) {
    const auto near = text.substr(n * (text.size() / kSamples), 2 * kBytes);
    const size_t begin = tokenizer.next_cut(near, 1);
    const size_t end = tokenizer.next_cut(near, std::min(begin + kBytes, near.size()));
    if (end >= near.size()) continue;  // hardly to be cut there
    encoder.encode(near.substr(begin, end - begin), ids);
    bytes += end - begin;
  }
  if (bytes == 0) return std::nullopt;
  const double more = static_cast<double>(text.size()) / static_cast<double>(bytes);
  const auto tokens =
      static_cast<double>(ids.size()) / static_cast<double>(id_width(tokenizer.vocabulary()));
  return EncodingCost{tokens * more, watch.seconds() * more / options.threads};
}

}  // namespace headlab
