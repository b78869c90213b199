#pragma once
/// The pictures of the documents, drawn from what the library really does. Each is a function
/// without input: the same bytes on every machine.

#include <functional>
#include <string>
#include <vector>

namespace lockstep::test {

std::string ring_picture();      ///< from the plans of an all-reduce on three ranks
std::string buckets_picture();   ///< from the buckets of README's larger model after one step
std::string timeline_picture();  ///< from the traces of two ranks in a simulated world
std::string layers_picture();    ///< from the #include lines of the sources

struct Picture {
  const char* name;  ///< docs/pictures/NAME.svg
  std::string (*draw)();
};
inline const std::vector<Picture> pictures = {{"ring", ring_picture},
                                              {"buckets", buckets_picture},
                                              {"timeline", timeline_picture},
                                              {"layers", layers_picture}};

}  // namespace lockstep::test
