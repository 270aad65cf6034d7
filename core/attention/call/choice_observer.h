// An observer (observer.h) may also ask what queries chose to see, of kinds that choose it: it
// derives from this class, too.
#pragma once

#include <string>

#include "core/attention/call/context.h"
#include "core/attention/call/observer.h"

namespace headlab {

class ChoiceObserver {
 public:
  virtual ~ChoiceObserver() = default;
  // "blocks" [B,H or Hkv,T,blocks] or "keys" [B,T,S], uint8, 1 = chosen; of the heads that the
  // layer has.
  virtual void choice(const std::string& of, const Tensor& chosen) = 0;
};

// call.observer where it asks that, else null.
inline ChoiceObserver* choice_observer(const HeadCall& call) {
  return dynamic_cast<ChoiceObserver*>(call.observer);
}

}  // namespace headlab
