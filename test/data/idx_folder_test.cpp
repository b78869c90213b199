#include "lockstep/data/idx_folder.h"

#include <doctest/doctest.h>

#include <vector>

#include "data/files.h"

namespace lockstep::data {
namespace {

using Integers = std::vector<std::int64_t>;

std::string message_of(const std::filesystem::path& folder) {
  try {
    load_idx(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// `count` images of 1 x 2 pixels: image i is (first + 2i, first + 2i + 1).
Bytes images(std::uint32_t count, int first = 0) {
  return idx_bytes(8, {count, 1, 2}, ramp(2 * count, first));
}
Bytes labels(std::uint32_t count, int first = 0) {
  return idx_bytes(8, {count}, ramp(count, first));
}

TEST_CASE("idx folder: of a single pair, every sixth sample is the test set") {
  const TemporaryFolder folder;
  write(folder, "some-images-idx3-ubyte", images(13));
  const auto file = write(folder, "some-labels-idx1-ubyte", labels(13, 100));
  const auto [train, test] = load_idx(folder.path());
  CHECK(train.records.to_vector<std::int64_t>() == Integers{0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12});
  CHECK(test.records.to_vector<std::int64_t>() == Integers{5, 11});
  CHECK(test["y"].to_vector<std::int64_t>() == Integers{105, 111});
  CHECK(test["x"].shape() == Shape{2, 2});
  // The brightest pixel is 25: divided by 255.
  CHECK(test["x"].to_vector<float>() ==
        std::vector<float>{10 / 255.f, 11 / 255.f, 22 / 255.f, 23 / 255.f});
  CHECK(train.size() == 11);
  CHECK(train["x"].size(0) == 11);
  CHECK(test.source == file.string());
}

TEST_CASE("idx folder: pixels of at most 16 are divided by 16, over both sets together") {
  const TemporaryFolder folder;
  write(folder, "train-images-idx3-ubyte", idx_bytes(8, {1, 1, 2}, {0, 16}));
  write(folder, "train-labels-idx1-ubyte", labels(1, 3));
  write(folder, "t10k-images-idx3-ubyte", idx_bytes(8, {1, 1, 2}, {4, 8}));
  write(folder, "t10k-labels-idx1-ubyte", labels(1, 4));
  {
    const auto [train, test] = load_idx(folder.path());
    CHECK(train["x"].to_vector<float>() == std::vector<float>{0, 1});
    CHECK(test["x"].to_vector<float>() == std::vector<float>{0.25, 0.5});
  }
  write(folder, "t10k-images-idx3-ubyte", idx_bytes(8, {1, 1, 2}, {4, 17}));
  {
    const auto [train, test] = load_idx(folder.path());
    CHECK(train["x"].to_vector<float>() == std::vector<float>{0, 16 / 255.f});
    CHECK(test["x"].to_vector<float>() == std::vector<float>{4 / 255.f, 17 / 255.f});
    CHECK(train["y"].to_vector<std::int64_t>() == Integers{3});
    CHECK(test["y"].to_vector<std::int64_t>() == Integers{4});
  }
}

TEST_CASE("idx folder: names with a dot, gzipped files, a plain file before its gzipped twin") {
  const TemporaryFolder folder;
  write(folder, "t10k-images.idx3-ubyte.gz", gzip(images(6)));
  write(folder, "t10k-labels.idx1-ubyte", labels(6));
  write(folder, "t10k-labels.idx1-ubyte.gz", {});  // would be an error if it were read
  write(folder, "notes.txt", ramp(5));
  const auto [train, test] = load_idx(folder.path());
  CHECK(train["y"].to_vector<std::int64_t>() == Integers{0, 1, 2, 3, 4});
  CHECK(test["y"].to_vector<std::int64_t>() == Integers{5});
}

TEST_CASE("idx folder: no samples at all") {
  const TemporaryFolder folder;
  write(folder, "x-images-idx3-ubyte", idx_bytes(8, {0, 8, 8}, {}));
  write(folder, "x-labels-idx1-ubyte", labels(0));
  const auto [train, test] = load_idx(folder.path());
  CHECK(train["x"].shape() == Shape{0, 64});
  CHECK(test["x"].shape() == Shape{0, 64});
  CHECK(test.size() == 0);
  check_labels(train, 10);
}

TEST_CASE("idx folder: folders that are not understood") {
  const TemporaryFolder folder;
  CHECK(has(message_of(folder.path() / "absent"), "absent: No such file"));
  CHECK(has(message_of(write(folder, "file", {})), "file: Not a directory"));
  CHECK(has(message_of(folder.path()), "no files named *images-idx3-ubyte"));
  write(folder, "b-labels-idx1-ubyte", labels(3));
  CHECK(has(message_of(folder.path()), "images are missing: b-images-idx3-ubyte"));
  write(folder, "b-images-idx3-ubyte", images(2));
  CHECK(has(message_of(folder.path()), "holds 2 images"));
  CHECK(has(message_of(folder.path()), "3 labels"));
  write(folder, "a-images-idx3-ubyte", images(2));
  CHECK(has(message_of(folder.path()), "labels are missing: a-labels-idx1-ubyte"));
  write(folder, "a-labels-idx1-ubyte", labels(2));
  CHECK(has(message_of(folder.path()), "it has a-images-idx3-ubyte b-images-idx3-ubyte"));
  write(folder, "a-labels.idx1-ubyte", labels(2));
  CHECK(has(message_of(folder.path()), "both"));
}

TEST_CASE("idx folder: files of other contents") {
  const TemporaryFolder folder;
  const auto x = write(folder, "x-images-idx3-ubyte", idx_bytes(0x0C, {1, 1, 1}, ramp(4)));
  write(folder, "x-labels-idx1-ubyte", labels(1));
  CHECK(has(message_of(folder.path()), "not i32 of shape (1, 1, 1)"));
  write(folder, "x-images-idx3-ubyte", labels(1));
  CHECK(has(message_of(folder.path()), "not u8 of shape (1,)"));
  write(folder, "x-images-idx3-ubyte", images(1));
  write(folder, "x-labels-idx1-ubyte", images(1));
  CHECK(has(message_of(folder.path()), "not u8 of shape (1, 1, 2)"));
  write(folder, "x-labels-idx1-ubyte", idx_bytes(0x0D, {1}, ramp(4)));
  CHECK(has(message_of(folder.path()), "not f32 of shape (1,)"));
  write(folder, "x-labels-idx1-ubyte", idx_bytes(8, {9}, ramp(4)));
  CHECK(has(message_of(folder.path()), "x-labels-idx1-ubyte: truncated"));
}

TEST_CASE("idx folder: images of train and test differ in size") {
  const TemporaryFolder folder;
  write(folder, "train-images-idx3-ubyte", images(2));
  write(folder, "train-labels-idx1-ubyte", labels(2));
  write(folder, "t10k-images-idx3-ubyte", idx_bytes(8, {1, 3, 3}, ramp(9)));
  write(folder, "t10k-labels-idx1-ubyte", labels(1));
  CHECK(has(message_of(folder.path()), "has images of 2 pixels"));
}

TEST_CASE("idx folder: a label that the last layer has no output for") {
  const TemporaryFolder folder;
  write(folder, "x-images-idx3-ubyte", images(12));
  const auto file = write(folder, "x-labels-idx1-ubyte", labels(12));
  const auto [train, test] = load_idx(folder.path());
  check_labels(test, 12);
  check_labels(train, 11);
  const std::string expected = "[data] " + file.string() +
                               ": label 11 of record 11 is none of the 11 classes that the last "
                               "layer has outputs for";
  CHECK_THROWS_WITH_AS(check_labels(test, 11), expected.c_str(), DataError);
  CHECK_THROWS_AS(check_labels(train, 10), DataError);

  write(folder, "x-labels-idx1-ubyte", idx_bytes(0x0C, {12}, ramp(48, 0xff, 0)));  // all -1
  CHECK_THROWS_AS(check_labels(load_idx(folder.path()).test, 10), DataError);
}

TEST_CASE("idx folder: the digits that come with Lockstep") {
  const auto [train, test] = load_idx(LOCKSTEP_SOURCE_DIR "/samples/data/digits");
  CHECK(train["x"].shape() == Shape{1498, 64});
  CHECK(test["x"].shape() == Shape{299, 64});
  check_labels(train, 10);
  check_labels(test, 10);
  // Its first record as published: digit 0, second row of pixels 0 0 13 15 10 15 5 0.
  CHECK(train["y"].data<std::int64_t>()[0] == 0);
  const std::vector<float> row{0, 0, 13, 15, 10, 15, 5, 0};
  for (std::size_t i = 0; i < row.size(); ++i)
    CHECK(train["x"].data<float>()[8 + i] == row[i] / 16);
}

TEST_CASE("idx folder: sizes whose product is no number of pixels are refused by name") {
  // Of no images: the file is as long as its header says.
  for (const std::uint32_t side : {0x80000000u, 0xffffffffu, 1u << 20}) {
    CAPTURE(side);
    const TemporaryFolder folder;
    write(folder, "some-images-idx3-ubyte", idx_bytes(8, {0, side, side, side}, {}));
    write(folder, "some-labels-idx1-ubyte", labels(0));
    const std::string message = message_of(folder.path());
    CAPTURE(message);
    CHECK(has(message, "some-images-idx3-ubyte"));
    CHECK(has(message, fmt::format("({}, {}, {}) has more than 2^59 elements", side, side, side)));
  }
}

}  // namespace
}  // namespace lockstep::data
