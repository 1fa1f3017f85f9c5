#include "deploy/plan/collectives.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "deploy/plan/json_fields.h"
#include "deploy/plan/tables.h"
#include "deploy/plan/units.h"

namespace lockstep::plan {
namespace {

using nlohmann::json;

// Links without measurements: typical latencies of a PCIe group, and the share of the link's rate
// that NVLink's fits reach.
constexpr double kFormulaOneShotUs = 8.0;
constexpr double kFormulaTwoShotUs = 15.0;
constexpr double kFormulaShare = 0.6;
// A message between GPUs of two nodes, and of one.
constexpr double kNodeMessageUs = 10.0;
constexpr double kLinkMessageUs = 5.0;

const json& Table() {
  static const json table = BuiltInTable(CollectivesJson());
  return table;
}

CollectiveFit ByFormula(double link_gb_s, int ranks) {
  return {ranks, kFormulaOneShotUs, kFormulaShare * link_gb_s, kFormulaTwoShotUs,
          kFormulaShare * link_gb_s};
}

// Of a GPU to those of a group: in a mesh only the links to them carry what they send each other.
double LinkRate(const Interconnect& net, int ranks) {
  if (net.mesh_links == 0) return net.link_gb_s;
  return net.link_gb_s * std::min(1.0, (ranks - 1.0) / net.mesh_links);
}

double Mix(double a, double b, double share) { return a + (b - a) * share; }

// Between two measured numbers of ranks by the logarithm; beyond the last by its slope.
CollectiveFit FitOf(const Interconnect& net, int ranks) {
  if (ranks > net.link_gpus) return ByFormula(net.pcie_gb_s, ranks);
  if (net.fits.empty()) return ByFormula(LinkRate(net, ranks), ranks);
  if (net.fits.size() == 1 || ranks <= net.fits.front().ranks) return net.fits.front();
  size_t upper = 1;
  while (upper + 1 < net.fits.size() && net.fits[upper].ranks < ranks) ++upper;
  const CollectiveFit& a = net.fits[upper - 1];
  const CollectiveFit& b = net.fits[upper];
  const double share = std::log2(static_cast<double>(ranks) / a.ranks) /
                       std::log2(static_cast<double>(b.ranks) / a.ranks);
  const double rate_share = std::min(1.0, share);  // rates saturate
  return {ranks, Mix(a.one_shot_us, b.one_shot_us, share),
          Mix(a.one_shot_gb_s, b.one_shot_gb_s, rate_share),
          Mix(a.two_shot_us, b.two_shot_us, share),
          Mix(a.two_shot_gb_s, b.two_shot_gb_s, rate_share)};
}

double InsideSeconds(const Interconnect& net, int ranks, double bytes) {
  for (const MeasuredLinks::AllReduce& measured : net.measured.all_reduces) {
    if (measured.ranks != ranks) continue;
    return OnCurve(measured.by_size, &SizedTime::bytes, &SizedTime::us, bytes) * kMicro;
  }
  return IntraNodeSeconds(FitOf(net, ranks), bytes);
}

std::string RanksText(const MeasuredLinks& measured) {
  return absl::StrJoin(measured.all_reduces, ", ",
                       [](std::string* out, const MeasuredLinks::AllReduce& each) {
                         absl::StrAppend(out, each.ranks);
                       });
}

}  // namespace

double IntraNodeSeconds(const CollectiveFit& fit, double bytes) {
  const double n = fit.ranks;
  const double one_shot =
      fit.one_shot_us * kMicro + (n - 1.0) * bytes / (fit.one_shot_gb_s * kGiga);
  const double two_shot =
      fit.two_shot_us * kMicro + 2.0 * (n - 1.0) / n * bytes / (fit.two_shot_gb_s * kGiga);
  return std::min(one_shot, two_shot);
}

Interconnect InterconnectOf(const Gpu& gpu, int gpus_per_node, const MeasuredLinks& measured) {
  Interconnect net;
  net.measured = measured;
  net.link = gpu.link;
  net.link_gb_s = gpu.link_gb_s;
  net.nic_gb_s = gpu.nic_gb_s;
  net.gpus_per_node = gpus_per_node;
  net.link_gpus = gpu.link_gpus > 0 ? gpu.link_gpus : gpus_per_node;
  net.mesh_links = gpu.mesh_links;
  net.pcie_gb_s = gpu.pcie_gb_s;
  net.source = "formula over the link's rate";
  const json& table = Table();
  net.node_latency_us = table["node_latency_us"][0].get<double>();
  for (const json& entry : table["links"]) {
    if (entry["link"] != json(gpu.link)) continue;
    net.source = entry["source"].get<std::string>();
    for (const json& fit : entry["fits"]) {
      net.fits.push_back({fit["ranks"].get<int>(), fit["one_shot_us"].get<double>(),
                          fit["one_shot_gb_s"].get<double>(), fit["two_shot_us"].get<double>(),
                          fit["two_shot_gb_s"].get<double>()});
    }
  }
  if (!measured.all_reduces.empty()) {
    net.source =
        absl::StrCat(measured.source, " (tp ", RanksText(measured), "); else ", net.source);
  }
  return net;
}

double AllReduceSeconds(const Interconnect& net, int ranks, double bytes) {
  if (ranks <= 1) return 0.0;
  // A link that joins several nodes is as good as one node.
  const int local = std::min(ranks, std::max(net.gpus_per_node, net.link_gpus));
  const double inside = local > 1 ? InsideSeconds(net, local, bytes) : 0.0;
  const int nodes = (ranks + local - 1) / local;
  if (nodes == 1) return inside;
  // Reduce-scatter inside, all-reduce of each GPU's share over its own NIC, all-gather inside.
  const double steps = std::ceil(std::log2(nodes));
  const double share = bytes / local;
  return inside + steps * net.node_latency_us * kMicro +
         2.0 * (nodes - 1.0) / nodes * share / (net.nic_gb_s * kGiga);
}

double TransferSeconds(const Interconnect& net, bool across_nodes, double bytes) {
  if (across_nodes) return kNodeMessageUs * kMicro + bytes / (net.nic_gb_s * kGiga);
  if (const MeasuredLinks& measured = net.measured; measured.message_gb_s > 0) {
    return measured.message_us * kMicro + bytes / (measured.message_gb_s * kGiga);
  }
  return kLinkMessageUs * kMicro + bytes / (LinkRate(net, 2) * kFormulaShare * kGiga);
}

}  // namespace lockstep::plan
