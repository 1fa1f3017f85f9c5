// What the gateway counts of its own requests, for Prometheus, and tells of them in its log. The
// exchanges' thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "launcher/gateway/access_log.h"
#include "launcher/http/http_exchange.h"
#include "launcher/metrics/metric_families.h"

namespace lockstep {

class GatewayMetrics {
 public:
  void AddTo(MetricFamilies& families) const;

 private:
  friend class MeteredExchange;
  int64_t num_running_ = 0;
  std::map<std::pair<const char*, int>, uint64_t> num_answered_;  // by route and status
};

// Another exchange, whose answer is counted and logged once it is over.
class MeteredExchange final : public HttpExchange {
 public:
  // route: of a few, whatever paths clients think of; outlives the metrics. log: null = none.
  MeteredExchange(HttpExchange& exchange, const char* route, GatewayMetrics& metrics,
                  AccessLog* log);
  ~MeteredExchange() override;

  const HttpRequest& request() const override { return exchange_.request(); }
  Awaitable<std::optional<HttpReply>> ReadBody() override { return exchange_.ReadBody(); }
  Awaitable<void> Reply(HttpReply reply) override;
  Awaitable<bool> BeginStream(absl::string_view content_type) override;
  Awaitable<bool> Write(absl::string_view piece) override;
  Awaitable<void> EndStream() override { return exchange_.EndStream(); }
  bool PeerHasGone() override { return exchange_.PeerHasGone(); }

  // Fields for the log.
  void Note(nlohmann::ordered_json fields) { noted_ = std::move(fields); }

 private:
  void WriteToLog() const;

  HttpExchange& exchange_;
  const char* const route_;
  GatewayMetrics& metrics_;
  AccessLog* const log_;
  const absl::Time began_ = absl::Now();
  int status_ = 0;             // 0: the client left before
  size_t num_bytes_sent_ = 0;  // of bodies
  nlohmann::ordered_json noted_ = nlohmann::ordered_json::object();
};

}  // namespace lockstep
