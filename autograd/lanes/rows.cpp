// What the rows of operands and outputs are made of.
#include "lockstep/autograd/rows.h"

#include <algorithm>
#include <string>

#include "lockstep/autograd/lanes/lane_tape.h"
#include "lockstep/core/generator.h"

namespace lockstep {

using detail::lanes_here;
using detail::Node;

namespace {

enum class MadeOf : std::uint8_t { none, samples, mixed, losses };

MadeOf rows_of(const Lanes& lanes, const Tensor& x) {
  if (!x.defined()) return MadeOf::none;
  if (detail::is_cut_loss(x)) return MadeOf::losses;
  const RowOrigin origin = x.row_origin();
  if (origin == RowOrigin()) return MadeOf::none;
  const bool counts = x.rank() > 0 && lanes.counts(x.size(0));
  return origin.is_samples() && counts ? MadeOf::samples : MadeOf::mixed;
}

std::string_view name_of_mixer(const Tensor& x) {
  return x.row_origin().is_mixed() ? x.row_origin().mixed_by() : std::string_view("reshape");
}

struct Found {
  bool samples = false, losses = false;
  std::string fault;       // why the output is not made row by row; empty: it is
  std::string_view mixer;  // the operation that has mixed them, if it was an earlier one
};

// What is wrong with operand i, beside samples.
std::string fault_beside_samples(std::string_view operation, const Operand& operand, MadeOf of,
                                 std::ptrdiff_t i) {
  const Tensor& x = *operand.tensor;
  if (of == MadeOf::samples && operand.rows == Operand::Rows::unsaid)
    return fmt::format(
        "[{}] does not say what it does with the samples of operand {}, which are kept apart: "
        "apart(x), shared(x) (autograd/rows.h)",
        operation, i);
  if (of == MadeOf::samples && operand.rows == Operand::Rows::shared)
    return fmt::format(
        "[{}] of shape {} would mix the samples of several lanes: with lanes, what becomes of a "
        "sample may depend on no other one (but by BatchNorm and a loss)",
        operation, x.shape());
  const bool rows = of == MadeOf::none && operand.rows == Operand::Rows::apart && x.defined() &&
                    x.rank() > 0 && x.size(0) != 1;
  return !rows ? ""
               : fmt::format(
                     "[{}] operand {}, of shape {}, has a row for each sample of this rank, but "
                     "was not made of the batch: with lanes, of_samples(x) says that its rows "
                     "belong to them, if they are the same on any number of ranks",
                     operation, i, x.shape());
}

Found find(const Lanes& lanes, std::string_view operation, const Tensor& output,
           std::span<const Operand> operands, Makes makes) {
  Found found;
  bool others = false;
  for (const Operand& operand : operands) {
    const MadeOf of = rows_of(lanes, *operand.tensor);
    found.samples |= of == MadeOf::samples;
    found.losses |= of == MadeOf::losses;
    others |= of != MadeOf::losses && operand.tensor->defined();
    if (of != MadeOf::mixed || !found.mixer.empty()) continue;
    found.mixer = name_of_mixer(*operand.tensor);
    found.fault = fmt::format(
        "[{}] operand {}, of shape {}, was made by [{}], which mixes the samples of several lanes: "
        "with lanes, what becomes of a sample may depend on no other one (but by BatchNorm and a "
        "loss)",
        operation, &operand - operands.data(), operand.tensor->shape(), found.mixer);
  }
  if (!found.mixer.empty()) return found;
  if (found.losses && (others || makes != Makes::linear))
    found.fault = fmt::format(
        "[{}] of a loss: with lanes there is one loss for each of them. They can be added, "
        "subtracted and multiplied by a number",
        operation);
  for (const Operand& operand : operands)
    if (found.samples && found.fault.empty())
      found.fault = fault_beside_samples(operation, operand, rows_of(lanes, *operand.tensor),
                                         &operand - operands.data());
  if (found.samples && found.fault.empty() && makes != Makes::loss && output.defined() &&
      !(output.rank() > 0 && lanes.counts(output.size(0))))
    found.fault = fmt::format("[{}] makes {} of samples, and would mix those of several lanes",
                              operation, output.shape());
  return found;
}

bool is_recorded(const Operand& operand) {
  return operand.tensor->gradient_ref().tape != GradientRef::nothing;
}

// A loss is none of the batch's rows any more.
void mark(const Tensor& output, const Found& found, std::string_view operation, Makes makes) {
  if (!found.fault.empty() || found.losses || (found.samples && makes == Makes::loss))
    output.storage().set_origin(RowOrigin::mixed(found.mixer.empty() ? operation : found.mixer));
  else if (found.samples)
    output.storage().set_origin(RowOrigin::samples());
}

bool is_new_memory(const Tensor& output, std::span<const Operand> operands) {
  return output.defined() && std::ranges::none_of(operands, [&](const Operand& operand) {
           return operand.tensor->defined() && operand.tensor->storage() == output.storage();
         });
}

}  // namespace

const Lanes* detail::lanes_here() {
  return Tape::current() ? Tape::current()->lanes() : current_lanes().get();
}

Node::Rows detail::rows_recorded(const Lanes& lanes, std::string_view operation,
                                 const Tensor& output, std::span<const Operand> operands,
                                 Makes makes) {
  const Found found = find(lanes, operation, output, operands, makes);
  check<StateError>(found.fault.empty(), "{}", found.fault);
  if (is_new_memory(output, operands)) mark(output, found, operation, makes);
  if (found.losses || (found.samples && makes == Makes::loss)) return Node::Rows::losses;
  return found.samples ? Node::Rows::samples : Node::Rows::none;
}

void detail::mark_rows(std::string_view operation, const Tensor& output,
                       std::span<const Operand> operands) {
  const Lanes* const lanes = lanes_here();
  if (!lanes || !is_new_memory(output, operands)) return;
  mark(output, find(*lanes, operation, output, operands, Makes::rows), operation, Makes::rows);
}

Operand aligned(const Tensor& x, const Shape& shape) {
  const bool rows =
      x.defined() && x.rank() == shape.rank() && (x.rank() == 0 || x.shape()[0] == shape[0]);
  return rows ? apart(x) : shared(x);
}

Tensor keep_rows(std::string_view operation, Tensor y, std::initializer_list<Operand> operands) {
  detail::mark_rows(operation, y, std::span(operands));
  return y;
}

void refuse_mixing(std::string_view operation, std::initializer_list<Operand> operands) {
  const Lanes* const lanes = lanes_here();
  if (!lanes || std::ranges::none_of(operands, is_recorded)) return;
  const Found found = find(*lanes, operation, {}, std::span(operands), Makes::rows);
  check<StateError>(found.fault.empty(), "{}", found.fault);
}

void change_rows(std::string_view operation, const Tensor& a, const Tensor& b) {
  const Lanes* const lanes = lanes_here();
  if (!lanes) return;
  const Operand operands[] = {apart(a), aligned(b, a.shape())};
  const Found found = find(*lanes, operation, a, operands, Makes::rows);
  mark(a, found, operation, Makes::rows);
}

// ---- how rows are cut ----

namespace {

const Lanes* lanes_of_rows(const Tensor& x) {
  const Lanes* const lanes = lanes_here();
  return lanes && rows_of(*lanes, x) == MadeOf::samples ? lanes : nullptr;
}

std::vector<std::int64_t> cuts_of(const Lanes* lanes, std::int64_t rows) {
  return lanes ? lanes->offsets(rows) : std::vector<std::int64_t>();
}

}  // namespace

RowParts::RowParts(const Tensor& x) : rows_(rows_in(x)), cuts_(cuts_of(lanes_of_rows(x), rows_)) {}

RowParts::RowParts(const Gradients& g, std::int64_t count)
    : rows_(count), cuts_(cuts_of(g.node_.rows == Node::Rows::none ? nullptr : g.lanes_, count)) {}

// The number of rows depends on the rank, and what the next call draws must not depend on it. So
// each lane has its own stream, and the generator advances past the streams of all lanes, also for
// rows that are mixed.
void draw_for(const Tensor& x, const std::function<void(RowRange, PhiloxState)>& use) {
  const Lanes* const lanes = lanes_here();
  if (!lanes || rows_of(*lanes, x) == MadeOf::none)
    return use({0, rows_in(x)}, default_philox().reserve(x.numel()));
  constexpr std::int64_t numbers_of_a_lane = std::int64_t{1} << 32;
  check<ShapeError>(x.numel() <= numbers_of_a_lane,
                    "[random] {} needs more than the {} numbers that a lane has", x.shape(),
                    numbers_of_a_lane);
  PhiloxGenerator streams = default_philox();
  for (int lane = 0; lane < lanes->first(); ++lane) streams.reserve(numbers_of_a_lane);
  const RowParts rows(x);
  for (std::int64_t k = 0; k < rows.count(); ++k) use(rows[k], streams.reserve(numbers_of_a_lane));
  for (int lane = 0; lane < lanes->total(); ++lane) default_philox().reserve(numbers_of_a_lane);
}

bool of_no_samples(const Tensor& x) { return lanes_here() && x.row_origin() == RowOrigin(); }

void need_all_rows(std::string_view operation, const Tensor& x, bool others_join) {
  const Lanes* const lanes = lanes_of_rows(x);
  if (!lanes || others_join || lanes->count() == lanes->total()) return;
  const LaneRecord* const record = LaneRecord::current();
  check<StateError>(record && record->is_again(),
                    "[{}] with lanes the statistics are those of all samples, and this rank has {} "
                    "of {}: nn::convert_sync_batchnorm(model, world)",
                    operation, lanes->rows(), lanes->all_rows());
}

void note_parts(const char* operation, const Tensor& parts) {
  if (LaneRecord* const record = LaneRecord::current()) record->note(operation, parts);
}

}  // namespace lockstep
