#pragma once
/// NumPy's files (numpy.lib.format, versions 1.0, 2.0 and 3.0; .npz is a zip archive of them):
///
///   const Tensor prices = data::read_npy("prices.npy");     // numpy.save("prices.npy", a)
///   const data::Fields all = data::read_npz("train.npz");   // numpy.savez("train.npz", x=a, y=b)
///   const data::TensorDataset train({{"x", all["x"]}, {"y", all["y"]}});

#include <string>

#include "lockstep/data/fields.h"

namespace lockstep::data {

/// Reads an array. Types: f2 (f16), f4, f8, i4, i8, u1, and bool as u8 of 0 and 1; others are
/// refused by name, as are big-endian elements and more than 6 dimensions. Headers are those of
/// Python 3, and of Python 2 with its long integers, (3L, 4L); a type without a byte order has that
/// of this machine. An array in Fortran
/// order is brought into row-major order. The file must be exactly as long as its header says,
/// which is checked before memory is allocated; a gzipped file is unpacked on the way. Throws
/// DataError that names the file and the value at fault.
Tensor read_npy(const std::string& path);

/// Reads the arrays of an archive of numpy.savez or numpy.savez_compressed, named as there. Members
/// are stored or deflated; length and CRC of each are checked. Throws DataError, as read_npy, for
/// what is damaged. What cannot be read (an array of texts, a member that is no array, an encrypted
/// one) harms no other one: the result refuses it, by name and type, when it is asked for. Where
/// "x.npy" and "x" are there, "x" is the array.
Fields read_npz(const std::string& path);

}  // namespace lockstep::data
