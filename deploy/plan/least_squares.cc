#include "deploy/plan/least_squares.h"

#include <cmath>
#include <utility>

namespace lockstep::plan {
namespace {

constexpr int kMaxSteps = 25;
constexpr double kDifference = 1e-4;

// Pseudo-Huber loss of one residual, and the weight by which its square stands for it.
double Loss(double residual, double scale) {
  const double ratio = residual / scale;
  return 2.0 * scale * scale * (std::sqrt(1.0 + ratio * ratio) - 1.0);
}
double Weight(double residual, double scale) {
  const double ratio = residual / scale;
  return 1.0 / std::sqrt(1.0 + ratio * ratio);
}

double TotalLoss(const std::vector<double>& residuals, double scale) {
  double total = 0.0;
  for (const double residual : residuals) total += Loss(residual, scale);
  return total;
}

using Matrix = std::vector<std::vector<double>>;

// Gaussian elimination with pivoting; a is small and positive definite.
std::vector<double> Solve(Matrix a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column; row < n; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    }
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = column + 1; row < n; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < n; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = n; row-- > 0;) {
    for (size_t k = row + 1; k < n; ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

// Weighted normal equations at x.
void NormalEquations(const Residuals& residuals, const std::vector<double>& x, double scale,
                     Matrix& a, std::vector<double>& b) {
  const std::vector<double> here = residuals(x);
  Matrix slopes;
  for (size_t i = 0; i < x.size(); ++i) {
    std::vector<double> moved = x;
    moved[i] += kDifference;
    std::vector<double> there = residuals(moved);
    for (size_t k = 0; k < here.size(); ++k) there[k] = (there[k] - here[k]) / kDifference;
    slopes.push_back(std::move(there));
  }
  a.assign(x.size(), std::vector<double>(x.size(), 0.0));
  b.assign(x.size(), 0.0);
  for (size_t k = 0; k < here.size(); ++k) {
    const double weight = Weight(here[k], scale);
    for (size_t i = 0; i < x.size(); ++i) {
      b[i] -= weight * slopes[i][k] * here[k];
      for (size_t j = 0; j < x.size(); ++j) a[i][j] += weight * slopes[i][k] * slopes[j][k];
    }
  }
}

}  // namespace

std::vector<double> MinimizeResiduals(const Residuals& residuals, std::vector<double> start,
                                      double scale) {
  std::vector<double> x = std::move(start);
  double loss = TotalLoss(residuals(x), scale);
  double damping = 1e-2;
  Matrix a;
  std::vector<double> b;
  for (int step = 0; step < kMaxSteps && damping < 1e8; ++step) {
    NormalEquations(residuals, x, scale, a, b);
    for (bool better = false; !better && damping < 1e8;) {
      Matrix damped = a;
      for (size_t i = 0; i < x.size(); ++i) damped[i][i] += damping * (a[i][i] + 1e-12);
      const std::vector<double> move = Solve(damped, b);
      std::vector<double> next = x;
      for (size_t i = 0; i < x.size(); ++i) next[i] += move[i];
      const double there = TotalLoss(residuals(next), scale);
      better = there < loss;
      damping *= better ? 0.3 : 4.0;
      if (!better) continue;
      if (loss - there < 1e-6 * loss) return next;
      x = std::move(next);
      loss = there;
    }
  }
  return x;
}

}  // namespace lockstep::plan
