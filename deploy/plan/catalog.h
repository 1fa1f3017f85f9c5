// The built-in GPUs, models and prices, each number with its source and date. Pure but for
// LoadModel and LoadPrices, which read files; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/plan/architecture.h"
#include "deploy/plan/formats.h"

namespace lockstep::plan {

// Every number's source by field name, as "title (date)".
using Sources = std::map<std::string, std::string>;

struct Gpu {
  std::string name;
  std::string title;
  std::string driver_name;  // "NVIDIA H100 80GB HBM3"; empty where it is not known
  bool has_cuda = true;     // what `serve` computes with on GPUs
  std::string link;
  double memory_gib = 0.0;  // as the driver reports it
  double bandwidth_gb_s = 0.0;
  double f32_tflops = 0.0;   // of products that keep all bits: TF32 is another number format
  double bf16_tflops = 0.0;  // rates are dense; 0 of those that follow: the hardware has none
  double fp8_tflops = 0.0;
  double int8_tops = 0.0;
  double fp4_tflops = 0.0;
  double link_gb_s = 0.0;  // per direction
  double nic_gb_s = 0.0;   // per GPU
  int link_gpus = 0;       // that the link joins; 0: those of a node
  int mesh_links = 0;      // link_gb_s is of so many, one to each other GPU; 0: a switch joins them
  double pcie_gb_s = 0.0;  // between GPUs of a node that the link does not join
  int gpus_per_node = 8;
  Sources sources;

  // Are there instructions that multiply such operands?
  bool Multiplies(Operands operands) const;
  // Multiply-add rate in FLOP/s; operands that the hardware lacks are widened to 16 bits.
  double FlopsOf(Operands operands) const;

 private:
  double TeraflopsOf(Operands operands) const;
};

// By name or alias, ASCII case ignored. NOT_FOUND with the nearest name.
absl::StatusOr<Gpu> FindGpu(const std::string& name);
std::vector<std::string> GpuNames();

struct Model {
  std::string name;
  std::string source;
  std::string directory;  // of a config.json; empty of built-in names
  Architecture architecture;
};

// A built-in name or alias, a directory with a config.json, or the path of one. NOT_FOUND with the
// nearest name, INVALID_ARGUMENT for a config.json that is not understood.
absl::StatusOr<Model> LoadModel(const std::string& name_or_path);
std::vector<std::string> ModelNames();

struct Price {
  double usd_per_gpu_hour = 0.0;
  std::string source;  // with its date
};
using Prices = std::map<std::string, Price>;  // by GPU name

Prices BuiltInPrices();
// The built-in models and GPUs with their other names, a line each.
std::string CatalogText();

// A file like data/prices.json. NOT_FOUND, INVALID_ARGUMENT naming the field.
absl::StatusOr<Prices> LoadPrices(const std::string& path);

}  // namespace lockstep::plan
