// Measurements in the text format that Prometheus reads (its exposition format 0.0.4; OpenMetrics
// readers take it, too).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/v1/generation.pb.h"
#include "prometheus/metric_family.h"

namespace lockstep {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";
inline constexpr char kMetricsPath[] = "/metrics";

class MetricFamilies {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;  // values: any bytes

  // Samples of one name form one family and are added one after the other. Names follow
  // prometheus.io/docs/practices/naming: units at the end, counters end with _total.
  void Gauge(const char* name, const char* help, double value, const Labels& labels = {});
  void Counter(const char* name, const char* help, double value, const Labels& labels = {});
  // One that is none (another number of counts than of bounds) is left out.
  void Histogram(const char* name, const char* help, const v1::Histogram& histogram);

  std::string Text() const;

 private:
  prometheus::ClientMetric& Add(const char* name, const char* help, prometheus::MetricType type,
                                const Labels& labels);

  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace lockstep
