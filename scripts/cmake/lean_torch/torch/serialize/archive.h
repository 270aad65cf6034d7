// In the place of torch's own: torch::nn::Module names the archives, headlab uses none (its
// checkpoints are safetensors), and they bring the whole of TorchScript along.
#pragma once

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize
