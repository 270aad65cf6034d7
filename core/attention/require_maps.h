// Paths of attention that heads with maps of their own do not have.
#pragma once

#include <string>

#include "core/attention/context.h"
#include "core/errors.h"

namespace headlab {

// BackendError where the caller asks for a path that makes no maps. `what`: "heads that are mixed".
inline void require_maps(const HeadCall& call, const std::string& what) {
  if (call.backend != Backend::kAuto && call.backend != Backend::kEager)
    throw BackendError("backends sdpa and flash: not for " + what + "; auto or eager serves");
}

}  // namespace headlab
