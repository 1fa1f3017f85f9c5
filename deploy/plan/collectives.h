// How long an all-reduce takes. Inside a node as it was calibrated for so many ranks, else by
// coefficients fitted to public measurements for every number of ranks measured, between and beyond
// them by interpolation; across nodes by the hierarchical formula. Pure; any thread.
//
// Formulas: one-shot (every rank reads all others: latency 1, bytes n - 1), two-shot or ring
// (reduce-scatter and all-gather: bytes 2 (n - 1) / n); Thakur, Rabenseifner, Gropp, "Optimization
// of collective communication operations in MPICH", 2005.
#pragma once

#include <string>
#include <vector>

#include "deploy/plan/catalog.h"
#include "deploy/plan/measured_curve.h"

namespace lockstep::plan {

// of a group of `ranks` GPUs on one kind of link.
struct CollectiveFit {
  int ranks = 2;
  double one_shot_us = 4.0;
  double one_shot_gb_s = 200.0;
  double two_shot_us = 9.0;
  double two_shot_gb_s = 300.0;
};

// What was measured between GPUs of a node, by those who will use it.
struct MeasuredLinks {
  struct AllReduce {
    int ranks = 2;
    std::vector<SizedTime> by_size;  // ascending; never empty
  };
  std::vector<AllReduce> all_reduces;
  double message_us = 0;  // to a neighbour, and its rate; 0: not measured
  double message_gb_s = 0;
  std::string source;
};

struct Interconnect {
  std::string link;
  std::vector<CollectiveFit> fits;  // by ranks, ascending; empty: by formula from link_gb_s alone
  double link_gb_s = 450.0;
  double nic_gb_s = 50.0;
  int gpus_per_node = 8;
  int link_gpus = 8;       // that the link joins: of a node, of several nodes, or of a part of one
  int mesh_links = 0;      // as a Gpu has it
  double pcie_gb_s = 0.0;  // between the parts of a node
  double node_latency_us = 25.0;  // of one all-reduce step between nodes
  MeasuredLinks measured;         // instead of fits and formulas, for what it covers
  std::string source;
};

// The interconnect of nodes of this GPU, gpus_per_node of them each.
Interconnect InterconnectOf(const Gpu& gpu, int gpus_per_node, const MeasuredLinks& measured = {});

double AllReduceSeconds(const Interconnect& net, int ranks, double bytes);
// One message between two GPUs.
double TransferSeconds(const Interconnect& net, bool across_nodes, double bytes);

// The formula itself, for the fit.
double IntraNodeSeconds(const CollectiveFit& fit, double bytes);

}  // namespace lockstep::plan
