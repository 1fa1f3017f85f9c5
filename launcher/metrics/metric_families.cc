#include "launcher/metrics/metric_families.h"

#include <limits>

#include "launcher/cli/values.h"
#include "prometheus/text_serializer.h"

namespace lockstep {

prometheus::ClientMetric& MetricFamilies::Add(const char* name, const char* help,
                                              prometheus::MetricType type, const Labels& labels) {
  if (families_.empty() || families_.back().name != name) {
    families_.emplace_back();
    families_.back().name = name;
    families_.back().help = help;
    families_.back().type = type;
  }
  prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
  for (const auto& [label, value] : labels) metric.label.push_back({label, ValidUtf8(value)});
  return metric;
}

void MetricFamilies::Gauge(const char* name, const char* help, double value, const Labels& labels) {
  Add(name, help, prometheus::MetricType::Gauge, labels).gauge.value = value;
}

void MetricFamilies::Counter(const char* name, const char* help, double value,
                             const Labels& labels) {
  Add(name, help, prometheus::MetricType::Counter, labels).counter.value = value;
}

void MetricFamilies::Histogram(const char* name, const char* help, const v1::Histogram& histogram) {
  if (histogram.counts_size() != histogram.bounds_size() + 1) return;
  auto& metric = Add(name, help, prometheus::MetricType::Histogram, {}).histogram;
  uint64_t count = 0;  // of this bucket and those before
  for (int i = 0; i < histogram.counts_size(); ++i) {
    count += histogram.counts(i);
    const bool is_last = i == histogram.bounds_size();
    metric.bucket.push_back(
        {count, is_last ? std::numeric_limits<double>::infinity() : histogram.bounds(i)});
  }
  metric.sample_count = count;
  metric.sample_sum = histogram.sum();
}

std::string MetricFamilies::Text() const {
  return prometheus::TextSerializer().Serialize(families_);
}

}  // namespace lockstep
