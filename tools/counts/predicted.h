#pragma once
/// Counted operations as work for the prediction (tools/predict/).

#include <string>
#include <vector>

#include "lockstep/tools/counts/counted.h"
#include "lockstep/tools/predict/document.h"

namespace lockstep::counts {

/// `times` as many blocks of every launch: what the operation is for so many times the rows.
///
/// Instructions are not counted, and registers are taken to leave room for all threads. A warp has
/// 4 loads under way at a time, and waits for them.
predict::Operation operation_of(const Counted& counted, double times = 1);

/// A row for each operation: its predicted time on the GPU, and why.
std::string predicted_table(const std::vector<Counted>& all, const predict::Gpu& gpu);

/// The same for a product of every precision, "4096x4096x1024" or "... NT". Throws UsageError.
std::string predicted_product(const std::string& size, const predict::Gpu& gpu);

/// Softmax of 2^28 elements on an H100, in rows that a block reads once and in rows that are read
/// twice.
predict::Readings softmax_readings(const std::vector<Counted>& all);

}  // namespace lockstep::counts
