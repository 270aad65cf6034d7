// headlab_write_log PATH [--pause] [--snapshots N]: writes a small log, for tests of those who read
// it.
//
// Steps 0, 10, ... 40; the values are formulas of their indices, which test_log_reading.py repeats.
// With --pause it says "ready" once all rows are flushed, and goes on when stdin ends. With
// --snapshots it writes N maps of 12 layers and 4 probes instead, 48 N chunks: a long log.
#include <cmath>
#include <iostream>
#include <limits>
#include <string>

#include "experiments/logs/run_log.h"

namespace headlab {
namespace {

LogMaps maps_of(const std::string& normalization, bool packed) {
  LogMaps maps;
  maps.probes = 2;
  maps.layers = {0, 2};
  maps.heads = {0, 1, 3};
  maps.query = {0, 1, 2, 3, 4};
  maps.key = {0, 1, 2, 3, 4, 5};
  maps.normalization = normalization;
  maps.packed = packed;
  maps.query_token = {1, 2, 3, 0, 1, 2, 2, 1, -1, -1};
  maps.key_token = {1, 2, 3, 0, 1, 2, 2, 1, 1, 0, -1, -1};
  maps.query_length = {5, 3};
  maps.key_length = {6, 4};
  return maps;
}

// [probe, layer, head, query, key]; nothing beyond the lengths.
std::vector<float> weights_of(const LogMaps& maps, int64_t step, float scale) {
  std::vector<float> weights;
  for (int64_t p = 0; p < maps.probes; ++p) {
    for (const int64_t l : maps.layers) {
      for (const int64_t h : maps.heads) {
        for (const int64_t q : maps.query) {
          for (const int64_t k : maps.key) {
            const bool there = q < maps.query_length[p] && k < maps.key_length[p];
            const int64_t code =
                ((step + 1) * (p + 2) * (l + 3) * (h + 5) + (q + 7) * (k + 11)) % 98;
            weights.push_back(there ? scale * static_cast<float>(code) / 97
                                    : std::numeric_limits<float>::quiet_NaN());
          }
        }
      }
    }
  }
  return weights;
}

LogLayout layout() {
  LogLayout out;
  out.run_id = "tiny/00000000-s1";
  out.title = "a small log";
  out.config_yaml = "name: tiny\n";
  out.manifest_json = "{\"versions\": {}}";
  out.created_utc = "2026-01-31T12:00:00Z";
  out.scalars = {{"train_loss", "nat", "training loss", "mean over targets of -ln p(target)"},
                 {"lr", "1", "learning rate", "of the parameters without a rate of their own"}};
  out.evals = {{"val_loss", "nat", "validation loss", "mean over targets of -ln p(target)"}};
  const std::vector<LogStatistic> statistics = {
      {{"entropy", "nat", "attention entropy", "mean over rows i of -sum_j a_ij ln a_ij"},
       LogDims::kLayerHead},
      {{"js", "nat", "Jensen-Shannon divergence of two heads", "mean over rows of JS(a_h, a_h2)"},
       LogDims::kLayerHeadHead},
      {{"residual_ratio", "1", "share of a layer's input that differs between positions",
        "norm_F(X - column means) / norm_F(X)"},
       LogDims::kLayer}};
  const int64_t layers = 3, heads = 4;
  out.sites = {{.name = "encoder_self",
                .layers = layers,
                .heads = heads,
                .statistics = statistics,
                .maps = maps_of("softmax", true)},
               {.name = "cross",
                .layers = layers,
                .heads = heads,
                .statistics = {statistics[0]},
                .maps = maps_of("composed", false)}};
  out.vocabularies["vocab"] = {"<pad>", "a", "\xc3\xa9t\xc3\xa9", std::string("\xff\0", 2)};
  return out;
}

void write_rows(RunLog& log, const LogLayout& layout) {
  for (int64_t step = 0; step <= 40; step += 10) {
    const double s = static_cast<double>(step);
    log.scalars(step, s / 4, step * 100, {{"train_loss", 4 - s / 20}, {"lr", 1e-3}});
    std::vector<double> entropy, js, residual;
    for (int layer = 0; layer < 3; ++layer) {
      residual.push_back(s + layer);
      for (int head = 0; head < 4; ++head) {
        entropy.push_back(s + layer + head / 8.0);
        for (int other = 0; other < 4; ++other) js.push_back(s * (head - other) + layer);
      }
    }
    const std::vector<uint8_t> alive = {1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1};  // 1:1 is pruned
    log.heads("encoder_self", step,
              {{"entropy", entropy}, {"js", js}, {"residual_ratio", residual}}, alive);
    log.heads("cross", step, {{"entropy", entropy}});
    if (step % 20 == 0) {
      log.eval(step, {{"val_loss", 5 - s / 20}});
      log.attention("encoder_self", step, weights_of(*layout.sites[0].maps, step, 1));
      log.attention("cross", step, weights_of(*layout.sites[1].maps, step, -3));
    }
  }
}

LogLayout long_layout() {
  LogLayout out = layout();
  LogMaps maps;
  maps.probes = 4;
  for (int64_t layer = 0; layer < 12; ++layer) maps.layers.push_back(layer);
  maps.heads = {0, 1};
  maps.query = maps.key = {0, 1, 2};
  maps.query_token = maps.key_token = std::vector<int32_t>(12, 1);
  maps.query_length = maps.key_length = {3, 3, 3, 3};
  out.sites = {{.name = "self",
                .layers = 12,
                .heads = 2,
                .statistics = {out.sites[0].statistics[0]},
                .maps = maps}};
  return out;
}

void write_snapshots(RunLog& log, const LogLayout& layout, int64_t snapshots) {
  const std::vector<float> weights(map_bytes(layout.sites[0]) / 2, 0.25f);
  for (int64_t step = 0; step < snapshots; ++step) {
    log.scalars(step, static_cast<double>(step), step, {{"train_loss", 1}, {"lr", 1e-3}});
    log.heads("self", step, {{"entropy", std::vector<double>(24, 0.5)}});
    log.attention("self", step, weights);
  }
}

}  // namespace
}  // namespace headlab

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: headlab_write_log PATH [--pause] [--snapshots N]\n";
    return 2;
  }
  bool pause = false;
  int64_t snapshots = 0;
  for (int i = 2; i < argc; ++i) {
    pause = pause || argv[i] == std::string("--pause");
    if (argv[i] == std::string("--snapshots") && i + 1 < argc) snapshots = std::stoll(argv[i + 1]);
  }
  const auto layout = snapshots > 0 ? headlab::long_layout() : headlab::layout();
  headlab::RunLog log = headlab::RunLog::create(argv[1], layout);
  if (snapshots > 0)
    headlab::write_snapshots(log, layout, snapshots);
  else
    headlab::write_rows(log, layout);
  log.sync();
  if (pause) {
    std::cout << "ready" << std::endl;
    std::string line;
    while (std::getline(std::cin, line)) {
    }
  }
  log.close(headlab::LogStatus::kFinished);
}
