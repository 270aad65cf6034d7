// What one attention layer keeps between decoding steps: named tensors appended along time,
// computed once, or replaced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace headlab {

using at::Tensor;

// When an entry of a cache is due: entry n once before + (n + 1) each places are seen. {s, l - s}:
// one of l places, every s of them.
struct CacheRate {
  int64_t each = 1, before = 0;
  int64_t entries(int64_t places) const { return places < before ? 0 : (places - before) / each; }
};

class LayerCache {
 public:
  // Appends fresh [B,H,n,d] along time (dimension 2) and returns everything kept, newest last.
  // `keep` > 0: entries which no later query can see are dropped, keep - 1 old ones stay (window).
  // The fresh ones are those that are due in this pass at the rate, which is the entry's for good.
  Tensor append(const std::string& name, const Tensor& fresh, int64_t keep = 0,
                CacheRate rate = {});
  // How many were appended, dropped ones included.
  int64_t entries(const std::string& name) const;
  // Computed at the first call, remembered afterwards (keys and values of a memory).
  Tensor once(const std::string& name, const std::function<Tensor()>& compute);

  // A state that each pass replaces (a recurrence): undefined before the first.
  Tensor& state(const std::string& name) { return states_[name]; }

  int64_t length() const { return length_; }  // places seen so far, dropped ones included
  int64_t bytes() const;                      // of what is kept, without room that is left over
  // After a pass over `places`. c10::Error for an entry without all that is due at its rate.
  void advance(int64_t places);
  // Goes on with these examples, rows [n] int64 of those it has, of which some may come twice.
  void select(const Tensor& rows);
  void clear();

 private:
  struct Entry {
    Tensor storage;  // [B,H,capacity,d]
    int64_t first = 0, size = 0;
    int64_t seen = 0;  // appended, dropped ones included
    CacheRate rate = {};
  };
  std::map<std::string, Entry> entries_;
  std::map<std::string, Tensor> once_, states_;
  int64_t length_ = 0;
};

}  // namespace headlab
