// `headlab forward RUN IN --out OUT`: a whole model on given inputs, every intermediate named.
#include <fmt/ranges.h>

#include <algorithm>

#include "core/errors.h"
#include "core/torch.h"
#include "experiments/commands/command.h"
#include "experiments/commands/options.h"
#include "experiments/data/task.h"
#include "experiments/models/intermediates.h"
#include "experiments/models/named_batch.h"
#include "experiments/runs/open_run.h"
#include "experiments/system/output.h"
#include "experiments/system/output_file.h"

namespace headlab {
namespace {

struct ForwardOptions {
  std::string run, in, out;
  ComputeOptions compute;
  bool gradients = false;

  void visit(Arguments& a) {
    a.run("run", run);
    a.option("inputs", in,
             "safetensors with in.ids [B,T], maybe in.mask, in.token_types, in.targets; of images "
             "in.pixels; "
             "of translation in.source_ids, in.decoder_ids, maybe in.source_mask",
             Arguments::kRequired);
    a.option("--out", out, "safetensors to write", Arguments::kRequired);
    a.flag("--gradients", gradients, "also grad.<parameter> of the loss");
    compute.visit(a);
  }
};

Batch read_batch(const ForwardOptions& o, const DataShape& shape) {
  const auto tensors = read_tensors(o.in);
  const auto known = batch_names(shape);
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with("in.") && std::find(known.begin(), known.end(), name) == known.end())
      throw DataError(fmt::format("{}: {} is no input of this model; it takes {}", o.in, name,
                                  fmt::join(known, ", ")));
  auto batch = named_batch(o.in, tensors, shape);
  if (shape.source_vocabulary > 0 && !batch.ids.defined())
    throw DataError(o.in + ": in.decoder_ids is missing");
  if (o.gradients && !batch.targets.defined())
    throw DataError(o.in + ": --gradients needs in.targets (negative: not scored)");
  return batch;
}

int run_forward(const ForwardOptions& o) {
  const auto compute = o.compute.apply();
  const OutputFile out(o.out, {o.in});
  auto opened = open_named_run(o.run, compute.device);
  const auto batch = read_batch(o, opened.data_description.shape).to(compute.device);
  at::AutoGradMode grad(o.gradients);
  const auto pass = intermediates(*opened.model, batch, compute.backend);
  const auto& output = pass.output;
  auto computed = pass.tensors;
  if (batch.targets.defined() && opened.model->predicts()) {
    const auto& task = prediction_task();
    auto loss = task.loss(output.logits, batch) / task.scored(batch).clamp_min(1);
    computed["out.loss"] = loss;
    if (o.gradients) {
      for (const auto& aux : output.aux) loss = loss + aux.value;
      loss.backward();
      for (const auto& p : opened.model->named_parameters())
        if (p.value().grad().defined()) computed["grad." + p.key()] = p.value().grad();
    }
  }
  for (auto& [name, tensor] : computed) tensor = tensor.detach();
  out.write([&](const std::filesystem::path& file) { write_tensors(file, computed); });
  if (computed.count("out.loss"))
    print_result(fmt::format("loss {:.6f}\n", computed["out.loss"].item<double>()));
  print_result(fmt::format("{} tensors in {}\n", computed.size(), o.out));
  return kDone;
}

const RegisterCommand forward_command(
    {.name = "forward",
     .summary = "run a trained model on given inputs and write every intermediate",
     .example = "headlab forward runs/char_mha/0123abcd-s1337 in.safetensors --out out.safetensors",
     .group = Group::kLook},
    run_forward);

}  // namespace
}  // namespace headlab
