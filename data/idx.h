#pragma once
/// The IDX format of the MNIST files (LeCun, Cortes, Burges, "The MNIST database of handwritten
/// digits", section "File formats"): two zero bytes; a type byte; the number of dimensions; that
/// many big-endian 4-byte sizes; the elements, row-major and big-endian.

#include <string>

#include "lockstep/core/tensor.h"

namespace lockstep::data {

/// Reads an IDX file, plain or gzipped. Types: u8 (08), i32 (0C), f32 (0D), f64 (0E); i8 and i16
/// have no DType and are refused. 1 to 4 dimensions; sizes may be 0. The file must be exactly as
/// long as its header says, which is checked before memory is allocated, as far as a gzipped file
/// can tell. Its elements must fit into the memory that is free (core/system/memory_limits.h).
/// Throws DataError that names the file and the value at fault.
Tensor read_idx(const std::string& path);

}  // namespace lockstep::data
