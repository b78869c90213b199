#include "lockstep/data/idx_folder.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/idx.h"
#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t max_pixels = std::int64_t{1} << 59;  // as f32 their bytes still fit an i64

struct Pair {
  fs::path images, labels;  // empty while not found
};

bool is_gzip(const fs::path& path) { return path.extension() == ".gz"; }

// Cuts `suffix` off; false if `name` does not end so.
bool cut(std::string_view& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  return true;
}

void put(fs::path& slot, const fs::path& file) {
  if (slot.empty()) {
    slot = file;
    return;
  }
  const auto [plain, packed] = is_gzip(slot) ? std::pair(file, slot) : std::pair(slot, file);
  check<DataError>(packed == fs::path(plain).concat(".gz"), "[data] {}: both {} and {} are there",
                   file.parent_path().string(), slot.filename().string(), file.filename().string());
  slot = plain;
}

// The folder's pairs by name: "train-", "t10k-", "digits-", ...
std::map<std::string, Pair> find_pairs(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  check<DataError>(!error, "[data] folder {}: {}", folder.string(), error.message());

  std::map<std::string, Pair> pairs;
  for (const fs::directory_entry& entry : entries) {
    if (!entry.is_regular_file(error)) continue;
    const std::string file = entry.path().filename().string();
    std::string_view name = file;
    cut(name, ".gz");
    if (cut(name, "images-idx3-ubyte") || cut(name, "images.idx3-ubyte"))
      put(pairs[std::string(name)].images, entry.path());
    else if (cut(name, "labels-idx1-ubyte") || cut(name, "labels.idx1-ubyte"))
      put(pairs[std::string(name)].labels, entry.path());
  }

  check<DataError>(!pairs.empty(),
                   "[data] folder {}: no files named *images-idx3-ubyte and "
                   "*labels-idx1-ubyte, plain or .gz",
                   folder.string());
  for (const auto& [name, pair] : pairs) {
    check<DataError>(!pair.labels.empty(), "[data] {}: its labels are missing: {}labels-idx1-ubyte",
                     pair.images.string(), name);
    check<DataError>(!pair.images.empty(), "[data] {}: its images are missing: {}images-idx3-ubyte",
                     pair.labels.string(), name);
  }
  return pairs;
}

struct Raw {
  Tensor images;  // u8 (N, pixels)
  Tensor labels;  // i64 (N,)
  std::string source;
};

Tensor to_i64(const Tensor& labels) {
  Tensor result = Tensor::empty(labels.shape(), DType::i64);
  visit_any(labels.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>)
      std::ranges::copy(labels.span<T>(), result.data<std::int64_t>());
  });
  return result;
}

Raw read_pair(const Pair& pair) {
  const Tensor images = read_idx(pair.images);
  const Tensor labels = read_idx(pair.labels);
  check<DataError>(images.rank() >= 2 && images.dtype() == DType::u8,
                   "[data] {}: images are u8 of 2 dimensions or more, not {} of shape {}",
                   pair.images.string(), images.dtype(), images.shape());
  check<DataError>(labels.rank() == 1 && !is_differentiable(labels.dtype()),
                   "[data] {}: labels are integers of 1 dimension, not {} of shape {}",
                   pair.labels.string(), labels.dtype(), labels.shape());
  check<DataError>(images.size(0) == labels.size(0), "[data] {} holds {} images, but {} {} labels",
                   pair.images.string(), images.size(0), pair.labels.string(), labels.size(0));
  std::int64_t pixels = 1;
  for (int i = 1; i < images.rank(); ++i) {  // of no images there may be any number of pixels
    const std::int64_t size = images.size(i);
    check<DataError>(size == 0 || pixels <= max_pixels / size,
                     "[data] {}: {} pixels times a size of {} are too many for an image",
                     pair.images.string(), pixels, size);
    pixels *= size;
  }
  return {images.view({images.size(0), pixels}), to_i64(labels), pair.labels.string()};
}

std::uint8_t brightest(const Raw& raw) {
  const auto pixels = raw.images.span<std::uint8_t>();
  return pixels.empty() ? std::uint8_t{0} : *std::ranges::max_element(pixels);
}

// The samples at `records`, with pixels divided by `scale`.
IdxDataset select(const Raw& raw, const std::vector<std::int64_t>& records, float scale) {
  const auto n = static_cast<std::int64_t>(records.size());
  const std::int64_t pixels = raw.images.size(1);
  const std::uint64_t bytes = static_cast<std::uint64_t>(n * pixels) * sizeof(float);
  check_memory(fmt::format("[data] {}: {} of its images, as f32,", raw.source, n), bytes);
  const Tensor x = Tensor::empty({n, pixels}), y = Tensor::empty({n}, DType::i64);
  float* out = x.data<float>();
  std::int64_t* label = y.data<std::int64_t>();
  for (std::int64_t record : records) {
    const std::uint8_t* in = raw.images.data<std::uint8_t>() + record * pixels;
    out = std::transform(in, in + pixels, out,
                         [scale](std::uint8_t pixel) { return static_cast<float>(pixel) / scale; });
    *label++ = raw.labels.data<std::int64_t>()[record];
  }
  return {x, y, Tensor::of<std::int64_t>({n}, records), raw.source};
}

template <class Keep>
std::vector<std::int64_t> records_where(const Raw& raw, Keep keep) {
  std::vector<std::int64_t> records;
  for (std::int64_t record = 0; record < raw.labels.numel(); ++record)
    if (keep(record)) records.push_back(record);
  return records;
}

TrainTest split_pairs(const Pair& train_files, const Pair& test_files) {
  const Raw train = read_pair(train_files);
  const Raw test = read_pair(test_files);
  check<DataError>(train.images.size(1) == test.images.size(1),
                   "[data] {} has images of {} pixels, but {} of {}", train_files.images.string(),
                   train.images.size(1), test_files.images.string(), test.images.size(1));
  const float scale = std::max(brightest(train), brightest(test)) <= 16 ? 16 : 255;
  const auto all = [](std::int64_t) { return true; };
  return {select(train, records_where(train, all), scale),
          select(test, records_where(test, all), scale)};
}

TrainTest split_single(const Pair& files) {
  const Raw raw = read_pair(files);
  const float scale = brightest(raw) <= 16 ? 16 : 255;
  const auto is_test = [](std::int64_t record) { return record % 6 == 5; };
  return {select(raw, records_where(raw, std::not_fn(is_test)), scale),
          select(raw, records_where(raw, is_test), scale)};
}

}  // namespace

TrainTest load_idx(const std::string& folder) {
  const std::map<std::string, Pair> pairs = find_pairs(folder);
  const auto train = pairs.find("train-");
  const auto test = pairs.find("t10k-");
  if (train != pairs.end() && test != pairs.end()) return split_pairs(train->second, test->second);
  if (pairs.size() == 1) return split_single(pairs.begin()->second);

  std::string names;
  for (const auto& [name, pair] : pairs)
    names += fmt::format(" {}", pair.images.filename().string());
  fail<DataError>("[data] folder {}: neither a single pair nor train- and t10k-; it has{}", folder,
                  names);
}

void check_labels(const IdxDataset& dataset, std::int64_t classes) {
  const auto labels = dataset["y"].span<std::int64_t>();
  for (std::size_t i = 0; i < labels.size(); ++i)
    check<DataError>(
        0 <= labels[i] && labels[i] < classes,
        "[data] {}: label {} of record {} is none of the {} classes that the last layer "
        "has outputs for",
        dataset.source, labels[i], dataset.records.data<std::int64_t>()[i], classes);
}

}  // namespace lockstep::data
