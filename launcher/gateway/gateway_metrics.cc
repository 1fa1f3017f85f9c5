#include "launcher/gateway/gateway_metrics.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lockstep {

void GatewayMetrics::AddTo(MetricFamilies& families) const {
  families.Gauge("lockstep_gateway_requests_running", "HTTP requests that are being answered.",
                 static_cast<double>(num_running_));
  for (const auto& [answered, count] : num_answered_) {
    const auto& [route, status] = answered;
    families.Counter("lockstep_gateway_requests_total",
                     "HTTP requests answered; code 0: the client left before.",
                     static_cast<double>(count), {{"path", route}, {"code", absl::StrCat(status)}});
  }
}

MeteredExchange::MeteredExchange(HttpExchange& exchange, const char* route, GatewayMetrics& metrics)
    : exchange_(exchange), route_(route), metrics_(metrics) {
  ++metrics_.num_running_;
}

MeteredExchange::~MeteredExchange() {
  --metrics_.num_running_;
  ++metrics_.num_answered_[{route_, status_}];
}

Awaitable<void> MeteredExchange::Reply(HttpReply reply) {
  status_ = reply.status;
  return exchange_.Reply(std::move(reply));
}

Awaitable<bool> MeteredExchange::BeginStream(absl::string_view content_type) {
  status_ = 200;
  return exchange_.BeginStream(content_type);
}

}  // namespace lockstep
