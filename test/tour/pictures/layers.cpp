// The layers of the sources: a folder stands above those that it includes.

#include <algorithm>
#include <map>
#include <set>

#include "structure/tree.h"
#include "tour/pictures/pictures.h"
#include "tour/pictures/svg.h"

namespace lockstep::test {
namespace {

const std::vector<std::string> folders = {"core",   "kernels", "autograd", "dist",
                                          "launch", "data",    "nn"};

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

/// includes[a] has b if a file of a includes one of b.
std::map<std::string, std::set<std::string>> includes() {
  std::map<std::string, std::set<std::string>> result;
  for (const std::string& path : files_of_tree()) {
    const std::string folder = folder_of(path);
    if (!is_source(path) || std::ranges::find(folders, folder) == folders.end()) continue;
    for (const std::string& line : lines_of_file(path)) {
      constexpr std::string_view start = "#include \"lockstep/";
      if (!line.starts_with(start)) continue;
      const std::string other = folder_of(line.substr(start.size()));
      if (other != folder && std::ranges::find(folders, other) != folders.end())
        result[folder].insert(other);
    }
  }
  return result;
}

/// Whether a path of includes leads from a to b.
bool reaches(const std::map<std::string, std::set<std::string>>& graph, const std::string& a,
             const std::string& b) {
  const auto found = graph.find(a);
  return found != graph.end() && std::ranges::any_of(found->second, [&](const std::string& next) {
           return next == b || reaches(graph, next, b);
         });
}

const std::map<std::string, std::string> subjects = {
    {"core", "dtype, shape, storage, tensor, stream"},
    {"kernels", "typed functions on tensors: cpu, cuda"},
    {"autograd", "parameters, tape, operations"},
    {"dist", "collectives, buckets, reducer, world"},
    {"launch", "starts the ranks of a job"},
    {"data", "datasets, sampler, loader"},
    {"nn", "layers, losses, optimizers"}};

}  // namespace

std::string layers_picture() {
  const auto graph = includes();
  std::map<std::string, int> level;  // 0 at the bottom: the longest way down
  for (std::size_t round = 0; round < folders.size(); ++round)
    for (const auto& [from, all] : graph)
      for (const std::string& to : all) level[from] = std::max(level[from], level[to] + 1);
  int highest = 0;
  std::map<int, std::vector<std::string>> rows;
  for (const std::string& folder : folders) {
    rows[level[folder]].push_back(folder);
    highest = std::max(highest, level[folder]);
  }
  constexpr double box_width = 260, box_height = 46, down = 84, width = 600;
  std::map<std::string, std::pair<double, double>> place;  // the middle of its upper edge
  for (const auto& [row, members] : rows)
    for (std::size_t k = 0; k < members.size(); ++k)
      place[members[k]] = {
          width / 2 + (static_cast<double>(k) - static_cast<double>(members.size() - 1) / 2) *
                          (box_width + 24),
          10 + down * (highest - row)};
  Svg svg(width, 10 + down * highest + box_height + 10,
          "The layers: arrows point to what a folder includes");
  for (const auto& [from, all] : graph)
    for (const std::string& to : all) {
      const bool by_others = std::ranges::any_of(all, [&](const std::string& between) {
        return between != to && reaches(graph, between, to);
      });
      if (by_others) continue;  // a longer way leads there
      svg.arrow(place[from].first, place[from].second + box_height, place[to].first,
                place[to].second - 2);
    }
  for (const auto& [name, at] : place) {
    svg.box(at.first - box_width / 2, at.second, box_width, box_height, "light");
    svg.text(at.first, at.second + 20, name + "/", "middle", "t b");
    svg.text(at.first, at.second + 37, subjects.at(name), "middle", "s");
  }
  return svg.str();
}

}  // namespace lockstep::test
