#include "launcher/serving/preflight_summary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "launcher/cli/values.h"
#include "parallel/placement.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxHostsShown = 8;

void KeepSlower(const std::optional<RankCheck::Link>& link, std::optional<RankCheck::Link>& kept) {
  if (!link) return;
  if (!kept) kept = link;
  kept->latency_us = std::max(kept->latency_us, link->latency_us);
  kept->bytes_per_second = std::min(kept->bytes_per_second, link->bytes_per_second);
}

std::string ShowLink(const RankCheck::Link& link) {
  return absl::StrFormat("%.0f us, %.2f GB/s", link.latency_us, link.bytes_per_second / 1e9);
}

std::string ShowHosts(const std::vector<PreflightSummary::Host>& hosts) {
  if (hosts.size() == 1) return absl::StrCat("all on ", hosts[0].name);
  std::vector<std::string> parts;
  for (const PreflightSummary::Host& host : hosts) {
    if (parts.size() == kMaxHostsShown) {
      parts.push_back(absl::StrCat("and ", hosts.size() - parts.size(), " more hosts"));
      break;
    }
    parts.push_back(absl::StrCat(FormatRanks(host.ranks), " on ", host.name));
  }
  return absl::StrJoin(parts, ", ");
}

// Of the host that has the least to spare.
std::string ShowMemory(const std::vector<PreflightSummary::Host>& hosts) {
  const auto fullest =
      std::min_element(hosts.begin(), hosts.end(), [](const auto& a, const auto& b) {
        return a.available_bytes - a.needed_bytes < b.available_bytes - b.needed_bytes;
      });
  return absl::StrCat(FormatBytes(fullest->needed_bytes), " of ",
                      FormatBytes(fullest->available_bytes), " free memory",
                      hosts.size() == 1 ? "" : absl::StrCat(" on ", fullest->name));
}

Json LinkJson(const std::optional<RankCheck::Link>& link) {
  if (!link) return nullptr;
  return {{"latency_us", link->latency_us}, {"bytes_per_second", link->bytes_per_second}};
}

}  // namespace

PreflightSummary SummarizePreflight(int tp, int pp, const std::map<int, ControllerEvent>& checks) {
  PreflightSummary summary;
  summary.stages.resize(static_cast<size_t>(pp));
  std::map<int, size_t> index_of_node;
  for (const auto& [rank, event] : checks) {
    const RankCheck& check = event.check;
    const auto [found, is_new] = index_of_node.emplace(check.node, summary.hosts.size());
    const bool on_gpu = check.gpu.has_value();
    if (is_new) summary.hosts.push_back({event.host, {}, 0, on_gpu ? 0 : check.available_bytes});
    PreflightSummary::Host& host = summary.hosts[found->second];
    host.ranks.push_back(rank);
    host.needed_bytes += check.needed_bytes;
    // Each rank tells of the host's, or of what it may have of its GPU's.
    host.available_bytes = on_gpu ? host.available_bytes + check.available_bytes
                                  : std::min(host.available_bytes, check.available_bytes);
    PreflightSummary::Stage& stage = summary.stages[static_cast<size_t>(rank / tp)];
    KeepSlower(check.tp, stage.tp);
    KeepSlower(check.next_stage, stage.next_stage);
  }
  return summary;
}

std::vector<std::string> PreflightLines(const PreflightSummary& summary) {
  size_t num_ranks = 0;
  for (const PreflightSummary::Host& host : summary.hosts) num_ranks += host.ranks.size();
  if (num_ranks < 2) return {};
  std::vector<std::string> lines = {absl::StrCat("Checked  ", num_ranks, " ranks, ",
                                                 ShowHosts(summary.hosts), "; they take ",
                                                 ShowMemory(summary.hosts))};
  for (size_t i = 0; i < summary.stages.size(); ++i) {
    const PreflightSummary::Stage& stage = summary.stages[i];
    std::vector<std::string> parts;
    if (stage.tp) parts.push_back(absl::StrCat("all-reduce ", ShowLink(*stage.tp)));
    if (stage.next_stage) {
      parts.push_back(absl::StrCat("to stage ", i + 1, " ", ShowLink(*stage.next_stage)));
    }
    if (!parts.empty()) {
      lines.push_back(absl::StrCat("  stage ", i, ": ", absl::StrJoin(parts, "; ")));
    }
  }
  return lines;
}

Json PreflightJson(int replica, const PreflightSummary& summary) {
  Json hosts = Json::array();
  for (const PreflightSummary::Host& host : summary.hosts) {
    hosts.push_back({{"host", host.name},
                     {"ranks", host.ranks},
                     {"needed_bytes", host.needed_bytes},
                     {"available_bytes", host.available_bytes}});
  }
  Json stages = Json::array();
  for (const PreflightSummary::Stage& stage : summary.stages) {
    stages.push_back(
        {{"all_reduce", LinkJson(stage.tp)}, {"to_next_stage", LinkJson(stage.next_stage)}});
  }
  return {{"replica", replica}, {"hosts", std::move(hosts)}, {"stages", std::move(stages)}};
}

}  // namespace lockstep
