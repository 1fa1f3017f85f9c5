// What `lockstep plan --calibrate` measured on GPUs, as the planner of such GPUs takes it: the
// coefficients of an engine of its own, Lockstep itself, in place of those fitted to public
// measurements of others. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "deploy/plan/catalog.h"
#include "deploy/plan/engine_profile.h"
#include "deploy/plan/host_profile.h"

namespace lockstep::plan {

// The engine that a calibration makes.
inline constexpr char kOwnEngine[] = "lockstep";

// Whether the profile is of such GPUs: the driver calls them so (case and a leading "NVIDIA" do not
// matter), and their memory is within 5 % of the catalog's.
bool IsProfileOf(const HostProfile& profile, const Gpu& gpu);
// INVALID_ARGUMENT naming what was measured and what was asked for.
absl::Status CheckProfileOf(const HostProfile& profile, const Gpu& gpu);
// The catalog's name of the profile's GPUs; empty where it has none.
std::string CatalogNameOf(const HostProfile& profile);

struct CalibratedGpu {
  Gpu gpu;  // with the sources of what its rates are worth
  EngineProfile engine;
};
// Of a profile of such GPUs, as few ranks as it has. Rates stay the datasheet's, of which the
// engine reaches the shares that were measured; what was not is `rest`'s (4-bit products, formats
// that were left out), links between nodes the catalog's.
CalibratedGpu Calibrated(const HostProfile& profile, const Gpu& gpu, const EngineProfile& rest);

}  // namespace lockstep::plan
