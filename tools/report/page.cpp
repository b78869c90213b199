#include "lockstep/tools/report/page.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>

#include "lockstep/core/error.h"
#include "lockstep/tools/trace/steps.h"

namespace lockstep::traces {
namespace {

using nlohmann::json;

const std::vector<std::string> kinds = {"forward",  "backward",   "optimizer", "load",  "call",
                                        "progress", "wait",       "idle",      "ready", "launched",
                                        "verdict",  "collective", "step",      "kernel"};

/// What the further numbers of an event mean, by kind, in the order in which the page gets them.
const std::map<std::string, std::vector<std::string>> words = {
    {"load", {"rows", "position"}},
    {"ready", {"bucket", "pending"}},
    {"launched", {"bucket", "bytes"}},
    {"collective", {"sequence", "operation", "algorithm", "elements", "bytes"}},
    {"step",
     {"number", "to", "send from", "up to", "from", "receive from", "up to", "action", "into"}}};

json more_of(const Event& event) {
  const json& a = event.arguments;
  if (event.category == "step")
    return {a.at("number"),        a.at("to"),     a.at("send").at(0),
            a.at("send").at(1),    a.at("from"),   a.at("receive").at(0),
            a.at("receive").at(1), a.at("action"), a.at("into")};
  json numbers = json::array();
  if (const auto found = words.find(event.category); found != words.end())
    for (const std::string& word : found->second) numbers.push_back(a.at(word));
  return numbers;
}

/// Texts and their numbers: 0, 1, ... in the order in which they are met.
using Names = std::map<std::string, std::size_t>;

json packed(const RankTrace& trace, Names& names) {
  json events = json::array(), more = json::object();
  std::int64_t before = 0;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const Event& event = trace.events[i];
    const auto begin = std::llround(event.begin * 1e3), end = std::llround(event.end * 1e3);
    const auto kind = std::ranges::find(kinds, event.category) - kinds.begin();
    const std::size_t name = names.try_emplace(event.name, names.size()).first->second;
    for (const std::int64_t number :
         {std::int64_t{event.track}, std::int64_t{kind}, static_cast<std::int64_t>(name),
          std::int64_t{begin - before}, std::int64_t{end - begin}})
      events.push_back(number);
    before = begin;
    if (json numbers = more_of(event); !numbers.empty())
      more[std::to_string(i)] = std::move(numbers);
  }
  return {{"events", std::move(events)}, {"more", std::move(more)}};
}

json figures_json(const RankFigures& f, std::size_t ranks) {
  std::vector<double> waits(ranks);
  for (const auto& [rank, time] : f.waits)
    if (rank >= 0 && static_cast<std::size_t>(rank) < ranks)
      waits[static_cast<std::size_t>(rank)] = time;
  return {{"time", f.time},           {"load", f.load},           {"forward", f.forward},
          {"backward", f.backward},   {"optimizer", f.optimizer}, {"exposed", f.exposed},
          {"in_flight", f.in_flight}, {"hidden", f.hidden},       {"waits", waits}};
}

/// Per name, by step: JSON has no NaN, which becomes null.
json values_json(const RankTrace& trace) {
  json all = json::array();
  Names names;
  for (const Value& value : trace.values)
    if (names.try_emplace(value.name, names.size()).second)
      all.push_back({{"name", value.name}, {"steps", {}}, {"numbers", {}}, {"times", {}}});
  std::vector<Value> values = trace.values;
  std::ranges::stable_sort(values, {}, &Value::step);
  for (const Value& value : values) {
    json& one = all[names.at(value.name)];
    one["steps"].push_back(value.step);
    one["numbers"].push_back(value.number);
    one["times"].push_back(value.time);
  }
  return all;
}

// NaN becomes null. `figures[r][k]` are those of rank r in this step.
json step_json(const Step& step, const std::vector<std::vector<RankFigures>>& figures,
               std::size_t k, double ideal) {
  json ranks = json::array();
  for (std::size_t r = 0; r < step.ranks.size(); ++r) {
    const Step::Rank& rank = step.ranks[r];
    json one = figures_json(figures[r][k], step.ranks.size());
    one["begin"] = rank.begin;
    one["end"] = rank.end;
    one["buckets"] = json::array();
    for (const BucketTimes& b : rank.buckets)
      one["buckets"].push_back({b.name, b.bytes, b.ready, b.launched, b.begun, b.arrived});
    ranks.push_back(std::move(one));
  }
  return {{"verdict", step.verdict}, {"ideal", ideal}, {"ranks", std::move(ranks)}};
}

std::string source(const std::string& name) {
  const std::string path = LOCKSTEP_REPORT_SOURCE "/" + name;
  std::ifstream file(path, std::ios::binary);
  check<DataError>(file.good(), "[report] cannot read the page's source '{}'", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(std::string& page, const std::string& place, const std::string& text) {
  const std::size_t at = page.find(place);
  check<DataError>(at != std::string::npos, "[report] the page has no place for '{}'", place);
  page.replace(at, place.size(), text);
}

}  // namespace

json page_data(const std::vector<RankTrace>& traces) {
  // The page numbers the ranks by their places.
  const std::string missing = missing_ranks(traces);
  check<DataError>(missing.empty(),
                   "[report] {} of {} left no trace of this run: `lockstep trace` reads the others",
                   missing, traces.empty() ? 0 : traces[0].world);
  const std::vector<Step> steps = steps_of(traces);
  Names names;
  json ranks = json::array(), figures = json::array(), all = json::array();
  std::vector<std::vector<RankFigures>> by_step;
  const std::vector<RankFigures> of_all = figures_of(traces, steps);
  for (std::size_t r = 0; r < traces.size(); ++r) {
    ranks.push_back(packed(traces[r], names));
    figures.push_back(figures_json(of_all[r], traces.size()));
    by_step.push_back(figures_by_step(traces, steps, r));
  }
  std::vector<std::string> texts(names.size());
  for (const auto& [name, number] : names) texts[number] = name;
  const std::map<std::string, double> cost = bucket_costs(steps);
  for (std::size_t k = 0; k < steps.size(); ++k)
    all.push_back(step_json(steps[k], by_step, k, ideal_exposed(steps[k], cost)));
  return {{"kinds", kinds},
          {"words", words},
          {"names", texts},
          {"figures", figures},
          {"steps", all},
          {"ranks", ranks},
          {"values", values_json(traces[0])}};
}

std::string page(const std::vector<RankTrace>& traces) {
  std::string text = source("page.html"), script;
  for (const char* name : {"data.js", "timeline.js", "ring.js", "step.js", "curves.js", "main.js"})
    script += source(name);
  std::string data =
      page_data(traces).dump(-1, ' ', true, json::error_handler_t::replace);  // ASCII alone
  // A name cannot end the element that the data lie in.
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos;)
    data.replace(at, 1, "\\u003c");
  put(text, "@@style@@", source("page.css"));
  put(text, "@@script@@", script);
  put(text, "@@data@@", data);
  return text;
}

}  // namespace lockstep::traces
