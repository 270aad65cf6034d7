// Examples as a model takes them: named inputs, and what is asked about them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace headlab {

using at::Tensor;

constexpr int64_t kIgnored = -100;  // a target that is not scored

// B examples. What a model does not read is undefined.
struct Batch {
  Tensor ids = {};  // [B,T] int64
  // [B,T] int64, or [B] for one a whole example, negative: not scored; [B,k] float32: numbers
  Tensor targets = {};
  Tensor length = {};         // [B] int64, positions of ids that are there; undefined: all
  Tensor segment = {};        // [B,T] int64
  Tensor image = {};          // [B,C,height,width]
  Tensor source = {};         // [B,S] int64, what is translated
  Tensor source_length = {};  // [B] int64
  Tensor reference = {};      // [B,D] float32, embeddings that those of a model are compared with

  const Tensor& input() const;  // the one that every example has: ids or image
  // An input where it is tokens, [B,T]; undefined: it is an image, or not there.
  Tensor tokens_of(Tensor Batch::*input) const;
  int64_t examples() const { return input().size(0); }
  int64_t tokens() const;  // what throughput counts: positions, or patches that are not cut yet: B
  Batch to(const at::Device& device) const;
  Batch part(int64_t first, int64_t end) const;  // examples first .. end - 1
};

// What the data ask of a model's shape. 0: the data have no such thing.
struct DataShape {
  int64_t vocabulary = 0, context = 0;                // of ids; T at most
  int64_t source_vocabulary = 0, source_context = 0;  // of source
  int64_t classes = 0;                                // of targets for whole examples
  int64_t values = 0;                                 // k of targets that are numbers
  int64_t channels = 0, height = 0, width = 0;        // of image
  // Tokens of ids (and source): what fills them up; what a target begins behind (a block with), and
  // ends with; what hides a word.
  std::optional<int64_t> pad = {}, start = {}, end = {}, mask = {};
  // Targets are among the ids that follow: whoever sees these knows the answer. Of data that are
  // open; a run does not keep it.
  bool targets_follow = false;
  // Targets are the ids at their own places: there is something to learn where a model has less
  // between the two than every id. Of open data, likewise.
  bool targets_are_ids = false;

  int64_t answers() const { return classes > 0 ? classes : values; }  // numbers for an example
};

// Examples one behind the other; shorter ones end in `pad` (targets in kIgnored), and have lengths
// then. Every batch has the same inputs.
Batch joined(const std::vector<Batch>& batches, int64_t pad);

// Tokens of each example, [B,T] with `fill` behind the shorter ones; how many these are, [B].
using TokenRows = std::vector<std::vector<int64_t>>;
Tensor padded_rows(const TokenRows& rows, int64_t fill);
Tensor row_lengths(const TokenRows& rows);
// Texts and their translations, each with the token that ends it: a decoder reads `start`, then all
// but the last of the translation.
Batch pair_batch(const TokenRows& texts, const TokenRows& translations, int64_t start, int64_t pad);

Batch empty_batch(int64_t count, int64_t context);  // [count, context], contiguous, on the CPU

}  // namespace headlab
