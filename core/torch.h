// What headlab uses of LibTorch. torch/torch.h, and each module of torch::nn, brings templates
// along that every file would instantiate anew, precompiled or not. So do the headers that
// scripts/cmake/lean_torch takes the place of, and autograd's custom_function.h, which the files
// that define a torch::autograd::Function include themselves.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
