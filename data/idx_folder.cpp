#include "lockstep/data/idx_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/idx.h"
#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

struct Pair {
  fs::path images, labels;  // empty while not found
};

// A plain file is read before its gzipped twin.
void put(fs::path& slot, const fs::path& file) {
  if (slot.empty() || slot == fs::path(file).concat(".gz"))
    slot = file;
  else
    check<DataError>(file == fs::path(slot).concat(".gz"), "[data] {}: both {} and {} are there",
                     file.parent_path().string(), slot.filename().string(),
                     file.filename().string());
}

struct Name {
  std::string pair;
  bool images;  // or labels
};

// Of a file "train-images-idx3-ubyte", with a dot for the second hyphen or .gz behind: "train-".
std::optional<Name> parse_name(std::string_view file) {
  if (file.ends_with(".gz")) file.remove_suffix(3);
  for (const char* const kind :
       {"images-idx3-ubyte", "images.idx3-ubyte", "labels-idx1-ubyte", "labels.idx1-ubyte"})
    if (file.ends_with(kind))
      return Name{std::string(file.substr(0, file.size() - std::strlen(kind))), *kind == 'i'};
  return std::nullopt;
}

// The folder's pairs by name: "train-", "t10k-", "digits-", ...
std::map<std::string, Pair> find_pairs(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  check<DataError>(!error, "[data] folder {}: {}", folder.string(), error.message());

  std::map<std::string, Pair> pairs;
  for (const fs::directory_entry& entry : entries) {
    const std::optional<Name> name = parse_name(entry.path().filename().string());
    if (!name || !entry.is_regular_file(error)) continue;
    Pair& pair = pairs[name->pair];
    put(name->images ? pair.images : pair.labels, entry.path());
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
  Tensor images;  // u8 (n, pixels)
  Tensor labels;  // integers (n,)
  Pair files;
};

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
  // Of no images there may be any number of pixels.
  const Shape image = shape_of(pair.images, {images.shape().begin() + 1, images.shape().end()});
  return {images.view({images.size(0), image.numel()}), labels, pair};
}

std::uint8_t brightest(const Raw& raw) {
  const auto pixels = raw.images.span<std::uint8_t>();
  return pixels.empty() ? std::uint8_t{0} : *std::ranges::max_element(pixels);
}

// The records that are wanted, with pixels divided by `scale`.
template <class IsWanted>
IdxDataset select(const Raw& raw, float scale, IsWanted is_wanted) {
  std::vector<std::int64_t> records;
  for (std::int64_t record = 0; record < raw.labels.numel(); ++record)
    if (is_wanted(record)) records.push_back(record);
  const std::int64_t n = std::ssize(records), pixels = raw.images.size(1);
  const std::string source = raw.files.labels.string();
  check_memory(fmt::format("[data] {}: {} of its images, as f32,", source, n),
               static_cast<std::uint64_t>(n * pixels) * sizeof(float));
  const Tensor x = Tensor::empty({n, pixels}), y = Tensor::empty({n}, DType::i64);
  float* out = x.data<float>();
  std::int64_t* label = y.data<std::int64_t>();
  for (std::int64_t record : records) {
    const std::uint8_t* in = raw.images.data<std::uint8_t>() + record * pixels;
    out = std::transform(in, in + pixels, out,
                         [scale](std::uint8_t pixel) { return static_cast<float>(pixel) / scale; });
    *label++ = static_cast<std::int64_t>(raw.labels.item({record}));
  }
  return {x, y, Tensor::from(records), source};
}

}  // namespace

TrainTest load_idx(const std::string& folder) {
  std::map<std::string, Pair> pairs = find_pairs(folder);
  const bool divided = pairs.contains("train-") && pairs.contains("t10k-");
  std::string names;
  for (const auto& [name, pair] : pairs)
    names += fmt::format(" {}", pair.images.filename().string());
  check<DataError>(divided || pairs.size() == 1,
                   "[data] folder {}: neither a single pair nor train- and t10k-; it has{}", folder,
                   names);

  const Raw train = read_pair(divided ? pairs["train-"] : pairs.begin()->second);
  const Raw test = divided ? read_pair(pairs["t10k-"]) : train;
  check<DataError>(train.images.size(1) == test.images.size(1),
                   "[data] {} has images of {} pixels, but {} of {}", train.files.images.string(),
                   train.images.size(1), test.files.images.string(), test.images.size(1));
  const float scale = std::max(brightest(train), brightest(test)) <= 16 ? 16 : 255;
  const auto is_test = [](std::int64_t record) { return record % 6 == 5; };
  return {select(train, scale, [&](std::int64_t record) { return divided || !is_test(record); }),
          select(test, scale, [&](std::int64_t record) { return divided || is_test(record); })};
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
