#include "deploy/plan/pareto.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "deploy/plan/report.h"

namespace lockstep::plan {
namespace {

constexpr double kMaxConcurrency = 4096;
constexpr int kMaxTimesTheAnswer = 4;

void MarkFront(std::vector<ParetoPoint>& points) {
  double best = 0.0;
  for (ParetoPoint& point : points) {
    point.on_front = point.tokens_per_s_per_gpu > best;
    best = std::max(best, point.tokens_per_s_per_gpu);
  }
}

ParetoPoint PointOf(const Candidate& candidate, double concurrency, const Prediction& prediction) {
  ParetoPoint point;
  point.layout = candidate.layout;
  point.layout.replicas = 1;
  point.concurrency = concurrency;
  point.tpot_ms = prediction.tpot_ms;
  point.tokens_per_s_per_gpu = prediction.output_tokens_per_s / candidate.layout.ranks();
  return point;
}

// A logarithmic axis over [least, most], mapped to [0, 1].
class FrontAxis {
 public:
  FrontAxis(double least, double most)
      : low_(std::log(least)), span_(std::max(1e-9, std::log(most) - std::log(least))) {}
  double At(double value) const { return (std::log(value) - low_) / span_; }
  // 1, 2 and 5 times powers of ten inside.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    for (double power = 1e-3; power < 1e9; power *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * power;
        if (At(tick) >= -1e-9 && At(tick) <= 1 + 1e-9) ticks.push_back(tick);
      }
    }
    return ticks;
  }

 private:
  double low_;
  double span_;
};

struct Axes {
  FrontAxis tpot;
  FrontAxis throughput;
};

Axes AxesOf(const std::vector<ParetoPoint>& points) {
  double most = 0.0;
  double least = std::numeric_limits<double>::max();
  for (const ParetoPoint& point : points) {
    most = std::max(most, point.tokens_per_s_per_gpu);
    least = std::min(least, point.tokens_per_s_per_gpu);
  }
  return {FrontAxis(points.front().tpot_ms, points.back().tpot_ms), FrontAxis(least, most)};
}

std::string Name(const ParetoPoint& point) {
  return absl::StrFormat("tp %d x pp %d, %.0f request%s", point.layout.tp, point.layout.pp,
                         point.concurrency, point.concurrency == 1 ? "" : "s");
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

}  // namespace

std::vector<ParetoPoint> ParetoPoints(const Plan& plan) {
  std::vector<ParetoPoint> points;
  if (plan.request.output_tokens <= 1) return points;  // there is no time between tokens
  const Candidate* answer = plan.answer();
  const int most = answer == nullptr ? INT32_MAX : kMaxTimesTheAnswer * answer->layout.ranks();
  for (const Candidate& candidate : plan.candidates) {
    if (!candidate.memory.fits() || candidate.broken == Constraint::kContext) continue;
    if (candidate.layout.ranks() > most) continue;
    const double limit =
        std::min(kMaxConcurrency, static_cast<double>(candidate.memory.max_requests));
    for (double concurrency = 1; concurrency <= limit; concurrency *= 2) {
      points.push_back(
          PointOf(candidate, concurrency, PredictReplica(plan.request, candidate, concurrency)));
    }
  }
  if (answer != nullptr) {
    points.push_back(PointOf(*answer, answer->load_per_replica, answer->prediction));
    points.back().is_answer = true;
  }
  std::sort(points.begin(), points.end(), [](const ParetoPoint& a, const ParetoPoint& b) {
    return a.tpot_ms != b.tpot_ms ? a.tpot_ms < b.tpot_ms
                                  : a.tokens_per_s_per_gpu > b.tokens_per_s_per_gpu;
  });
  MarkFront(points);
  return points;
}

std::string ParetoText(const std::vector<ParetoPoint>& points) {
  if (points.size() < 2) return "";
  constexpr int kWidth = 64;
  constexpr int kHeight = 14;
  const Axes axes = AxesOf(points);
  std::vector<std::string> grid(kHeight, std::string(kWidth, ' '));
  const auto cell = [&](const ParetoPoint& point) -> char& {
    const auto x = static_cast<size_t>(std::lround(axes.tpot.At(point.tpot_ms) * (kWidth - 1)));
    const auto y = static_cast<size_t>(
        std::lround((1 - axes.throughput.At(point.tokens_per_s_per_gpu)) * (kHeight - 1)));
    return grid[y][x];
  };
  for (const ParetoPoint& point : points) cell(point) = '.';
  for (const ParetoPoint& point : points) {
    if (point.on_front) cell(point) = '*';
  }
  for (const ParetoPoint& point : points) {
    if (point.is_answer) cell(point) = 'A';
  }
  std::string out =
      "\nOutput tokens/s per GPU over TPOT, both logarithmic (. layout and load, * on "
      "the front, A the answer)\n";
  double top = 0.0;
  double bottom = std::numeric_limits<double>::max();
  for (const ParetoPoint& point : points) {
    top = std::max(top, point.tokens_per_s_per_gpu);
    bottom = std::min(bottom, point.tokens_per_s_per_gpu);
  }
  for (int row = 0; row < kHeight; ++row) {
    const std::string label = row == 0             ? absl::StrFormat("%.3g", top)
                              : row == kHeight - 1 ? absl::StrFormat("%.3g", bottom)
                                                   : "";
    absl::StrAppendFormat(&out, "  %8s |%s\n", label, grid[row]);
  }
  absl::StrAppendFormat(&out, "           +%s\n            %-10s%*s\n", std::string(kWidth, '-'),
                        absl::StrFormat("%.3g ms", points.front().tpot_ms), kWidth - 10,
                        absl::StrFormat("%.3g ms", points.back().tpot_ms));
  return out;
}

std::string ParetoSvg(const Plan& plan, const std::vector<ParetoPoint>& points) {
  constexpr double kLeft = 70, kTop = 30, kWidth = 640, kHeight = 360;
  std::string out =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"450\" "
      "viewBox=\"0 0 760 450\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"760\" height=\"450\" fill=\"white\"/>\n";
  absl::StrAppendFormat(&out,
                        "<text x=\"%g\" y=\"18\">%s on %s: output tokens/s per GPU over "
                        "time per output token</text>\n",
                        kLeft, Escaped(plan.request.model.name), Escaped(plan.request.gpu.name));
  if (points.size() < 2) return out + "</svg>\n";
  const Axes axes = AxesOf(points);
  const auto x = [&](double tpot) { return kLeft + kWidth * axes.tpot.At(tpot); };
  const auto y = [&](double rate) { return kTop + kHeight * (1 - axes.throughput.At(rate)); };
  for (const double tick : axes.tpot.Ticks()) {
    absl::StrAppendFormat(&out,
                          "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%g\" y2=\"%g\" stroke=\"#ddd\"/>"
                          "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n",
                          x(tick), x(tick), kTop, kTop + kHeight, x(tick), kTop + kHeight + 18,
                          tick);
  }
  for (const double tick : axes.throughput.Ticks()) {
    absl::StrAppendFormat(&out,
                          "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          kLeft, kLeft + kWidth, y(tick), y(tick), kLeft - 6, y(tick) + 4, tick);
  }
  absl::StrAppendFormat(&out, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">TPOT, ms</text>\n",
                        kLeft + kWidth / 2, kTop + kHeight + 40);
  std::string front;
  for (const ParetoPoint& point : points) {
    const double px = x(point.tpot_ms);
    const double py = y(point.tokens_per_s_per_gpu);
    if (point.on_front) absl::StrAppendFormat(&front, "%.1f,%.1f ", px, py);
    absl::StrAppendFormat(
        &out,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"><title>%s: %.1f ms, %.0f "
        "tokens/s per GPU</title></circle>\n",
        px, py, point.is_answer ? 6.0 : 3.0,
        point.is_answer  ? "#d33"
        : point.on_front ? "#06c"
                         : "#bbb",
        Name(point), point.tpot_ms, point.tokens_per_s_per_gpu);
  }
  absl::StrAppendFormat(
      &out,
      "<polyline points=\"%s\" fill=\"none\" stroke=\"#06c\" stroke-width=\"1.5\"/>\n</svg>\n",
      front);
  return out;
}

std::string ParetoHtml(const Plan& plan, const std::vector<ParetoPoint>& points) {
  std::string out = absl::StrFormat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>lockstep plan: "
      "%s on %s</title></head>\n<body style=\"font-family: sans-serif\">\n",
      Escaped(plan.request.model.name), Escaped(plan.request.gpu.name));
  out += ParetoSvg(plan, points);
  out +=
      "<table border=\"1\" cellpadding=\"4\" style=\"border-collapse: collapse\">\n"
      "<tr><th>on the front</th><th>TPOT, ms</th><th>output tokens/s per GPU</th></tr>\n";
  for (const ParetoPoint& point : points) {
    if (!point.on_front) continue;
    absl::StrAppendFormat(&out, "<tr><td>%s</td><td>%.1f</td><td>%.0f</td></tr>\n", Name(point),
                          point.tpot_ms, point.tokens_per_s_per_gpu);
  }
  absl::StrAppend(&out, "</table>\n<pre>", Escaped(PlanText(plan)), "</pre>\n</body></html>\n");
  return out;
}

}  // namespace lockstep::plan
