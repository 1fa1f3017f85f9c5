// The figures of a tests/gpu/run.sh, out of the files that its programs kept.
//
//   gpu_figures DIRECTORY [SECONDS]     files older than that are said to be of an earlier run
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "fmt/format.h"
#include "tests/gpu/figures.h"

namespace lockstep::bench {
namespace {

using Clock = std::filesystem::file_time_type::clock;

// Null where there is none, or what there is is no JSON.
nlohmann::json Read(const std::filesystem::path& path, Clock::time_point began) {
  std::ifstream file(path);
  if (!file) return nullptr;
  nlohmann::json report = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) {
    fmt::print("{} cannot be read\n", path.filename().string());
    return nullptr;
  }
  if (std::filesystem::last_write_time(path) < began) {
    fmt::print("{} is of an earlier run\n", path.filename().string());
  }
  return report;
}

int Main(int argc, char** argv) {
  constexpr int kMostSeconds = 1 << 20;
  int seconds = kMostSeconds;
  const bool is_number = argc < 3 || absl::SimpleAtoi(argv[2], &seconds);
  if (argc < 2 || argc > 3 || !is_number || seconds < 0 || seconds > kMostSeconds) {
    fmt::print(stderr, "usage: gpu_figures DIRECTORY [SECONDS], 0 to {}\n", kMostSeconds);
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  const Clock::time_point began =
      argc > 2 ? Clock::now() - std::chrono::seconds(seconds + 1) : Clock::time_point::min();
  const auto read = [&](const char* name) { return Read(directory / name, began); };
  fmt::print("{}", Format(FiguresOf({.bf16 = read("bench-none.json"),
                                     .fp8 = read("bench-fp8.json"),
                                     .no_overlap = read("bench-no-overlap.json"),
                                     .deterministic = read("bench-deterministic.json"),
                                     .transformers = read("transformers.json"),
                                     .server_bf16 = read("server-none.json"),
                                     .server_fp8 = read("server-fp8.json")})));
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) { return lockstep::bench::Main(argc, argv); }
