#include <zip.h>

#include <algorithm>
#include <memory>

#include "lockstep/data/input.h"
#include "lockstep/data/npy.h"

namespace lockstep::data {
namespace {

using Archive = std::unique_ptr<zip_t, decltype([](zip_t* archive) { zip_discard(archive); })>;

Archive open_archive(const std::string& path) {
  check_readable(path);
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code));
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  const std::string why = zip_error_strerror(&error);
  zip_error_fini(&error);
  check<DataError>(archive != nullptr, "[npz] {}: {}", path, why);
  return archive;
}

// A file of an archive, unpacked on the way.
class Member : public ByteSource {
 public:
  Member(std::string name, zip_t* archive, const zip_stat_t& stat)
      : ByteSource(std::move(name)), file_(zip_fopen_index(archive, stat.index, 0)) {
    check<DataError>(file_ != nullptr, "[npz] {}: {}", this->name(), zip_strerror(archive));
    const std::uint64_t ratio = stat.comp_method == ZIP_CM_STORE ? 1 : max_deflate_ratio;
    max_bytes_ = std::min(stat.size, stat.comp_size * ratio);
  }
  std::size_t read_some(std::span<std::byte> out) override {
    const zip_int64_t got = zip_fread(file_.get(), out.data(), out.size());
    check<DataError>(got >= 0, "[npz] {}: damaged: {}", name(), zip_file_strerror(file_.get()));
    return static_cast<std::size_t>(got);
  }

 private:
  std::unique_ptr<zip_file_t, decltype([](zip_file_t* file) { zip_fclose(file); })> file_;
};

}  // namespace

Fields read_npz(const std::string& path) {
  const Archive archive = open_archive(path);
  Fields arrays;
  const auto members = static_cast<zip_uint64_t>(zip_get_num_entries(archive.get(), 0));
  for (zip_uint64_t i = 0; i < members; ++i) {
    zip_stat_t stat;
    check<DataError>(zip_stat_index(archive.get(), i, ZIP_FL_ENC_RAW, &stat) == 0, "[npz] {}: {}",
                     path, zip_strerror(archive.get()));
    const std::string_view file = stat.name, suffix = ".npy";
    const std::string name = fmt::format("{}: {}", path, printable(file));
    check<DataError>(stat.comp_method == ZIP_CM_STORE || stat.comp_method == ZIP_CM_DEFLATE,
                     "[npz] {}: compression method {} is neither stored (0) nor deflated (8)", name,
                     stat.comp_method);
    check<DataError>(file.ends_with(suffix) && file != suffix, "[npz] {}: it is no .npy array",
                     name);
    const std::string_view array = file.substr(0, file.size() - suffix.size());
    check<DataError>(!arrays.find(array), "[npz] {}: there are two of this name", name);
    Member member(name, archive.get(), stat);
    arrays.set(array, read_array(member));
  }
  return arrays;
}

}  // namespace lockstep::data
