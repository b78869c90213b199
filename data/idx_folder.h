#pragma once
/// Folders of IDX files: labelled images for classification.

#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// The fields x, f32 (n, pixels) from 0 to 1, and y, i64 (n,): the labels.
struct IdxDataset : TensorDataset {
  IdxDataset() = default;  ///< of no samples
  /// Of n images, n labels, and the places of both in their files.
  IdxDataset(const Tensor& x, const Tensor& y, Tensor file_records, std::string file)
      : TensorDataset({{"x", x}, {"y", y}}),
        records(std::move(file_records)),
        source(std::move(file)) {}

  Tensor records;      ///< i64 (n,): where each sample lies in its file, for messages
  std::string source;  ///< the file of the labels, for messages
};

/// What load_idx reads.
struct TrainTest {
  IdxDataset train;
  IdxDataset test;
};

/// Reads a folder of IDX files, as in `auto [train, test] = data::load_idx("samples/data/digits")`.
/// A pair of files is NAMEimages-idx3-ubyte and NAMElabels-idx1-ubyte with the same NAME, each
/// plain or with .gz behind it (where both exist, the plain one is read); `.idx` for `-idx` is
/// understood.
/// - With the pairs `train-` and `t10k-`, these are the training and the test set.
/// - Otherwise there must be a single pair. Every sixth sample (index mod 6 = 5) is for testing,
///   the others, in their order, are for training.
/// Pixels are divided by 16 if none of both sets is above 16, else by 255. How many classes there
/// are is not guessed from the labels: see check_labels. Throws DataError that names the folder or
/// the file and what is wrong with it.
TrainTest load_idx(const std::string& folder);

/// Throws DataError that names file, record, label and number of classes, unless all labels are in
/// 0 .. classes-1.
void check_labels(const IdxDataset& dataset, std::int64_t classes);

}  // namespace lockstep::data
