// The precompiled header of every file that needs LibTorch.
#pragma once
#include <torch/torch.h>
