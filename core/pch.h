// The precompiled header of every file that needs LibTorch.
#pragma once
#include <fmt/format.h>

#include "core/torch.h"
