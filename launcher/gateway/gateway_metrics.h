// What the gateway counts of its own requests, for Prometheus. The exchanges' thread alone.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

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

// Another exchange, whose answer is counted once it is over.
class MeteredExchange final : public HttpExchange {
 public:
  // route: of a few, whatever paths clients think of; outlives the metrics.
  MeteredExchange(HttpExchange& exchange, const char* route, GatewayMetrics& metrics);
  ~MeteredExchange() override;

  const HttpRequest& request() const override { return exchange_.request(); }
  Awaitable<void> Reply(HttpReply reply) override;
  Awaitable<bool> BeginStream(absl::string_view content_type) override;
  Awaitable<bool> Write(absl::string_view piece) override { return exchange_.Write(piece); }
  Awaitable<void> EndStream() override { return exchange_.EndStream(); }
  bool PeerHasGone() override { return exchange_.PeerHasGone(); }

 private:
  HttpExchange& exchange_;
  const char* const route_;
  GatewayMetrics& metrics_;
  int status_ = 0;  // 0: the client left before
};

}  // namespace lockstep
