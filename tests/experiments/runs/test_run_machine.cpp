// The device and precision that belong to a run. A second device is put into a manifest.
#include "core/kernels/isa_choice.h"
#include "core/torch.h"
#include "experiments/runs/open_run.h"
#include "experiments/runs/run_machine.h"
#include "experiments/runs/run_manifest.h"
#include "tests/catch.h"

namespace headlab::test_run_machine {
namespace {

using Json = nlohmann::ordered_json;
using Lines = std::vector<std::string>;
using Catch::Contains;

TrainOptions with_precision(const std::string& precision) {
  TrainOptions options;
  options.precision = precision;
  return options;
}

Json session(const std::string& device, const std::string& precision) {
  return make_manifest({.gpus = device == "cpu" ? Lines{} : Lines{"a GPU"},
                        .device = device,
                        .precision = precision});
}
// As versions before wrote it.
Json old_session(const std::string& device) {
  auto manifest = session(device, "fp32");
  manifest.erase("device"), manifest.erase("precision");
  return manifest;
}

TEST_CASE("train.precision resolves by the type of device") {
  CHECK(resolved_precision(with_precision("auto"), "cpu") == "fp32");
  CHECK(resolved_precision(with_precision("auto"), "cuda") == "bf16");
  for (const char* device : {"cpu", "cuda"})
    for (const char* precision : {"fp32", "bf16"})
      CHECK(resolved_precision(with_precision(precision), device) == precision);
  CHECK(device_type_of(at::kCPU) == "cpu");
  CHECK(device_type_of(at::Device("cuda:1")) == "cuda");
}

TEST_CASE("the manifest of a process names its device and precision") {
  Experiment experiment;
  const auto on_gpu = process_manifest(experiment, Json::array(), at::Device("cuda:0"));
  CHECK(on_gpu.at("device") == "cuda");
  CHECK(on_gpu.at("precision") == "bf16");
  const auto on_cpu = process_manifest(experiment, Json::array(), at::kCPU);
  CHECK(on_cpu.at("device") == "cpu");
  CHECK(on_cpu.at("precision") == "fp32");
  CHECK(on_cpu.at("cpu_capability").is_string());
  CHECK(on_cpu.at("isa") == isa_name(kernel_isa()));
}

TEST_CASE("a training that would go on elsewhere is told apart, also from an older manifest") {
  const auto options = with_precision("auto");
  const auto cpu = session("cpu", "fp32"), cuda = session("cuda", "bf16");
  CHECK(device_that_differs(cpu, cpu, options).empty());
  CHECK(device_that_differs(old_session("cpu"), cpu, options).empty());
  CHECK(device_that_differs(old_session("cuda"), cuda, options).empty());
  const Lines both{"device was cpu, is cuda", "precision was fp32, is bf16"};
  CHECK(device_that_differs(cpu, cuda, options) == both);
  CHECK(device_that_differs(old_session("cpu"), cuda, options) == both);
  CHECK(device_that_differs(cpu, session("cuda", "fp32"), with_precision("fp32")) ==
        Lines{"device was cpu, is cuda"});
  CHECK(device_that_differs(session("cuda", "fp32"), cuda, options) ==
        Lines{"precision was fp32, is bf16"});
  CHECK(device_that_differs(Json(), cuda, options).empty());
  CHECK_THAT(device_remedy(cpu, cuda), Contains("--device cpu"));
  CHECK_THAT(device_remedy(session("cuda", "fp32"), cuda), Contains("init=RUN"));
}

TEST_CASE("what a run was computed on is that of all its sessions") {
  const auto options = with_precision("auto");
  auto manifest = session("cuda", "bf16");
  CHECK(devices_of(manifest, options) == "cuda in bf16");
  manifest["previous"] = {session("cuda", "bf16")};
  CHECK(devices_of(manifest, options) == "cuda in bf16");
  manifest["previous"] = {old_session("cpu")};
  CHECK(devices_of(manifest, options) == "cpu in fp32 + cuda in bf16");
  CHECK(devices_of(Json(), options).empty());
}

TEST_CASE("what else of a machine moves the last bits is told") {
  const auto then = make_manifest({.torch = "2.10", .cpu_capability = "AVX2", .isa = "avx2"});
  CHECK(machine_since(then, then).empty());
  CHECK(machine_since(Json(), then).empty());
  const auto now = make_manifest({.torch = "2.11", .cpu_capability = "AVX512", .isa = "default"});
  const auto told = machine_since(then, now);
  CHECK_THAT(told, Contains("torch was 2.10, is 2.11"));
  CHECK_THAT(told, Contains("was AVX2, is AVX512"));
  CHECK_THAT(told, Contains("headlab's kernels was avx2, is default"));
  auto without = then;
  without.erase("cpu_capability");
  without.erase("isa");
  without["versions"].erase("torch");
  CHECK(machine_since(without, now).empty());  // nothing is known
}

}  // namespace
}  // namespace headlab::test_run_machine
