// Robust nonlinear least squares for a handful of coefficients. Pure; any thread.
//
// Levenberg-Marquardt (Marquardt 1963) with derivatives by differences; large residuals count
// linearly (pseudo-Huber), so that a few odd measurements do not bend the fit.
#pragma once

#include <functional>
#include <vector>

namespace lockstep::plan {

using Residuals = std::function<std::vector<double>(const std::vector<double>&)>;

// From `start` to the coefficients whose residuals are smallest. scale: where residuals turn from
// squared to linear.
std::vector<double> MinimizeResiduals(const Residuals& residuals, std::vector<double> start,
                                      double scale);

}  // namespace lockstep::plan
