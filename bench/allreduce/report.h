#pragma once
/// What `bench allreduce` says: tables for people and the list for programs.
///
/// For S bytes in t seconds on n ranks
///
///   algbw = S / t                   what a program sees
///   busbw = algbw * 2 (n-1)/n       what the link carries
///
/// since no all-reduce can do with less than 2 (n-1)/n S bytes out of (and into) every rank: n - 1
/// other contributions to each of the n parts have to reach the rank that adds that part up, and
/// n - 1 copies of each sum have to leave it: 2 (n-1) parts of S/n bytes for each rank. So busbw of
/// worlds of different sizes can be compared with each other, and with the speed of the link.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../figures.h"
#include "contender.h"

namespace bench {

/// A contender's rounds at one size.
struct Timing {
  Label label;
  std::int64_t bytes = 0;
  Figures figures;  ///< microseconds per call
};

double algorithm_bandwidth(const Timing& timing);       ///< GB/s (10^9)
double bus_bandwidth(const Timing& timing, int ranks);  ///< GB/s

/// "4 B", "64 KiB", "256 MiB"
std::string size_text(std::int64_t bytes);

/// The machine, what the columns mean, and their heads.
void print_heading(int ranks, int rounds);
/// All contenders at one size, with how many times as fast as gloo and Open MPI they are and what
/// share of the bound they reach.
void print_size(const std::vector<Timing>& timings, int ranks);
/// A line per size: what users get from shared memory and TCP beside the others.
void print_summary(const std::vector<std::vector<Timing>>& sizes);

/// {comm, transport, ranks, bytes, median_us, min_us, max_us, algbw_gbs, busbw_gbs} for each.
nlohmann::ordered_json summary(const std::vector<std::vector<Timing>>& sizes, int ranks);

}  // namespace bench
