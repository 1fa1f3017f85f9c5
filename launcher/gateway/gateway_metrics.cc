#include "launcher/gateway/gateway_metrics.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/cli/values.h"

namespace lockstep {
namespace {

constexpr size_t kMaxLoggedPath = 200;

}  // namespace

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

MeteredExchange::MeteredExchange(HttpExchange& exchange, const char* route, GatewayMetrics& metrics,
                                 AccessLog* log)
    : exchange_(exchange), route_(route), metrics_(metrics), log_(log) {
  ++metrics_.num_running_;
}

MeteredExchange::~MeteredExchange() {
  --metrics_.num_running_;
  ++metrics_.num_answered_[{route_, status_}];
  if (log_ != nullptr) WriteToLog();
}

void MeteredExchange::WriteToLog() const {
  const HttpRequest& http = request();
  const double ms = std::round(1e3 * absl::ToDoubleMilliseconds(absl::Now() - began_)) / 1e3;
  nlohmann::ordered_json entry = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", began_, absl::UTCTimeZone())},
      {"client", http.client},
      {"method", Excerpt(http.method, 20)},
      {"path", Excerpt(http.path, kMaxLoggedPath)},
      {"status", status_},
      {"ms", ms},
      {"bytes_in", http.body.size()},
      {"bytes_out", num_bytes_sent_}};
  entry.update(noted_);
  log_->Write(entry);
}

Awaitable<void> MeteredExchange::Reply(HttpReply reply) {
  status_ = reply.status;
  if (request().method != "HEAD") num_bytes_sent_ = reply.body.size();
  return exchange_.Reply(std::move(reply));
}

Awaitable<bool> MeteredExchange::BeginStream(absl::string_view content_type) {
  status_ = 200;
  return exchange_.BeginStream(content_type);
}

Awaitable<bool> MeteredExchange::Write(absl::string_view piece) {
  num_bytes_sent_ += piece.size();
  return exchange_.Write(piece);
}

}  // namespace lockstep
