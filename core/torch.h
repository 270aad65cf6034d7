// What headlab uses of LibTorch. torch/torch.h, and each module of torch::nn, brings templates
// along that every file would instantiate anew, precompiled or not: half of its compile time.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>
