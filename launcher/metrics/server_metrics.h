// What a server tells Prometheus: GetServerInfo and GetStatus under names of their own. No clock,
// no I/O.
#pragma once

#include "launcher/metrics/metric_families.h"
#include "lockstep/v1/generation.pb.h"

namespace lockstep {

void AddServerMetrics(const v1::GetServerInfoResponse& info, const v1::GetStatusResponse& status,
                      MetricFamilies& families);

}  // namespace lockstep
