#include "experiments/training/rank_sums.h"

#include <nlohmann/json.hpp>

#include "experiments/training/update.h"

namespace headlab {
namespace {

using Json = nlohmann::json;

// Own statistics without what completes them: rank 0, which reads the values, has that of its own.
Json json_of(const HeadSums& s) {
  Json own = Json::array();
  for (const auto& o : s.own)
    own.push_back({o.name, static_cast<int>(o.per), static_cast<int>(o.reduce), o.sums, o.counts});
  return {
      s.heads,    s.sums, s.counts,    s.maxima, s.offsets.reach, s.offsets.rows, s.sink_examples,
      s.examples, s.js,   s.js_counts, own,      s.alive};
}

HeadSums sums_of(const Json& j) {
  HeadSums s(j.at(0).get<int64_t>());
  s.sums = j.at(1).get<std::vector<double>>();
  s.counts = j.at(2).get<std::vector<double>>();
  s.maxima = j.at(3).get<std::vector<double>>();
  s.offsets.reach = j.at(4).get<int64_t>();
  s.offsets.rows = j.at(5).get<std::vector<int64_t>>();
  s.sink_examples = j.at(6).get<std::vector<double>>();
  s.examples = j.at(7).get<std::vector<double>>();
  s.js = j.at(8).get<std::vector<double>>();
  s.js_counts = j.at(9).get<std::vector<double>>();
  for (const auto& o : j.at(10))
    s.own.push_back({o.at(0).get<std::string>(), Per{o.at(1).get<int>()},
                     Reduce{o.at(2).get<int>()}, o.at(3).get<std::vector<double>>(),
                     o.at(4).get<std::vector<double>>()});
  s.alive = j.at(11).get<std::vector<bool>>();
  return s;
}

}  // namespace

std::string packed_sums(const std::vector<ProbeSums>& all) {
  Json json = Json::array();
  for (const auto& sums : all) {
    Json layers = Json::array();
    for (const auto& [key, of_layer] : sums)
      layers.push_back({key.site, key.layer, key.map, json_of(of_layer)});
    json.push_back(layers);
  }
  const auto bytes = Json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

std::vector<ProbeSums> unpacked_sums(const std::string& bytes) {
  std::vector<ProbeSums> all;
  for (const auto& layers : Json::from_cbor(bytes)) {
    ProbeSums sums;
    for (const auto& layer : layers)
      sums.emplace(MapKey(layer.at(0).get<std::string>(), layer.at(1).get<int64_t>(),
                          layer.at(2).get<int64_t>()),
                   sums_of(layer.at(3)));
    all.push_back(std::move(sums));
  }
  return all;
}

void add_sums_of_all(SiteProbes& probes, std::vector<ProbeSums> own, const MicroBatches& of,
                     Comm& comm) {
  std::vector<std::vector<ProbeSums>> of_ranks;
  if (comm.size() > 1) {
    const auto packed = comm.gather(comm.first() ? "" : packed_sums(own));
    if (!comm.first()) return;
    for (int r = 1; r < comm.size(); ++r) of_ranks.push_back(unpacked_sums(packed[r]));
  }
  of_ranks.insert(of_ranks.begin(), std::move(own));
  for (int64_t n = 0; n < of.count; ++n)
    probes.add_sums(of_ranks[n % comm.size()][n / comm.size()]);
}

}  // namespace headlab
