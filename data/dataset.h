#pragma once
/// Labelled images for classification, and the folders they are read from.

#include <cstdint>
#include <filesystem>
#include <string>

#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// Samples in memory. Copies share the elements, which nobody writes after loading.
struct Dataset {
  Tensor images;       ///< f32 (N, pixels), from 0 to 1
  Tensor labels;       ///< i64 (N,)
  Tensor records;      ///< i64 (N,): where each sample lies in its file, for messages
  std::string source;  ///< the file of the labels, for messages

  std::int64_t size() const { return labels.numel(); }
};

struct TrainTest {
  Dataset train;
  Dataset test;
};

/// Reads a folder of IDX files, as in `auto [train, test] = data::load_idx("samples/data/digits")`.
/// A pair of files is NAMEimages-idx3-ubyte and NAMElabels-idx1-ubyte with the same NAME, each
/// plain or with .gz behind it (where both exist, the plain one is read); `.idx` for `-idx` is
/// understood.
/// - With the pairs `train-` and `t10k-`, these are the training and the test set.
/// - Otherwise there must be a single pair, of which every sixth sample (index mod 6 = 5) is the
/// test
///   set and the others, in their order, the training set.
/// Pixels are divided by 16 if none of both sets is above 16, else by 255. How many classes there
/// are is not guessed from the labels: see check_labels. Throws DataError that names the folder or
/// the file and what is wrong with it.
TrainTest load_idx(const std::filesystem::path& folder);

/// Throws DataError that names file, record, label and number of classes, unless all labels are in
/// 0 .. classes-1.
void check_labels(const Dataset& dataset, std::int64_t classes);

}  // namespace lockstep::data
