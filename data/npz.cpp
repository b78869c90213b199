#include <zip.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/system/progress.h"
#include "lockstep/core/text/utf8.h"
#include "lockstep/data/input.h"
#include "lockstep/data/npy.h"

namespace lockstep::data {
namespace {

constexpr std::string_view suffix = ".npy";

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
    Progress::note();
    const zip_int64_t got = zip_fread(file_.get(), out.data(), out.size());
    check<DataError>(got >= 0, "[npz] {}: damaged: {}", name(), zip_file_strerror(file_.get()));
    return static_cast<std::size_t>(got);
  }

 private:
  std::unique_ptr<zip_file_t, decltype([](zip_file_t* file) { zip_fclose(file); })> file_;
};

std::string shown(const std::string& path, std::string_view member) {
  return fmt::format("{}: {}", path, printable(member));
}

bool is_array(std::string_view member) { return member.ends_with(suffix) && member != suffix; }

Tensor read_member(zip_t* archive, const std::string& path, const zip_stat_t& stat) {
  const std::string_view file = stat.name;
  const std::string name = shown(path, file);
  check<UnsupportedError>(stat.comp_method == ZIP_CM_STORE || stat.comp_method == ZIP_CM_DEFLATE,
                          "[npz] {}: compression method {} is neither stored (0) nor deflated (8)",
                          name, stat.comp_method);
  check<UnsupportedError>(is_array(file), "[npz] {}: it is no .npy array", name);
  check<UnsupportedError>(stat.encryption_method == ZIP_EM_NONE, "[npz] {}: it is encrypted", name);
  check<UnsupportedError>(is_utf8(file), "[npz] {}: its name is not UTF-8", name);
  Member member(name, archive, stat);
  try {
    return read_array(member);
  } catch (const UnsupportedError&) {
    // What is damaged may look like something else: its CRC tells.
    std::vector<std::byte> rest(std::size_t{1} << 16);
    while (member.read_some(rest) > 0) continue;
    throw;
  }
}

}  // namespace

Fields read_npz(const std::string& path) {
  const Archive archive = open_archive(path);
  Fields arrays;
  const auto members = static_cast<zip_uint64_t>(zip_get_num_entries(archive.get(), 0));
  for (zip_uint64_t i = 0; i < members; ++i) {
    zip_stat_t stat;
    check<DataError>(zip_stat_index(archive.get(), i, ZIP_FL_ENC_RAW, &stat) == 0, "[npz] {}: {}",
                     path, zip_strerror(archive.get()));
    std::string_view array = stat.name;
    if (is_array(array)) array.remove_suffix(suffix.size());
    check<DataError>(!is_array(stat.name) || !arrays.find(array),
                     "[npz] {}: there are two of this name", shown(path, stat.name));
    try {
      arrays.set(array, read_member(archive.get(), path, stat));
    } catch (const UnsupportedError& error) {
      arrays.refuse(array, error.what());
    }
  }
  return arrays;
}

}  // namespace lockstep::data
