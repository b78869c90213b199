#include "lockstep/dist/audit/audit.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/autograd/rerun.h"
#include "lockstep/core/lanes.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/kernels/fingerprint.h"

namespace lockstep::dist {

/// An audited step: this rank's part of it, how it began, and how to get any lane.
struct Audit::Step {
  const std::vector<Parameter>& parameters;
  const std::function<Part(int)>& lane;
  int lanes;  // of all ranks
  Surroundings start;
  LaneRecord record;
};

/// The auditor has other bits in a part of the owner's lane.
struct Audit::Dispute {
  std::int64_t part;  // of a record's parts()
  int owner, auditor, lane;
  Tensor used, computed;  // the bits of this rank, if it is the owner or the auditor
  std::int64_t fingerprint_used;
};

namespace {

Tensor row_of(const LaneRecord::Part& part, std::int64_t k) {
  return part.lanes.defined() ? part.lanes.slice(k, k + 1) : Tensor();
}

// i64 (parts,): of lane k of each part; 0 where there is none.
Tensor fingerprints(const LaneRecord& record, std::int64_t k) {
  const auto& parts = record.parts();
  const Tensor result = Tensor::zeros({std::ssize(parts)}, DType::i64);
  std::vector<Tensor> sums;
  for (const LaneRecord::Part& part : parts) {
    const Tensor row = row_of(part, k);
    sums.push_back(row.defined() ? Tensor::zeros({2}, DType::i64, row.device()) : Tensor());
    if (row.defined()) kernels::add_fingerprint({&row, 1}, {.sum = &sums.back()});
  }
  for (std::size_t i = 0; i < sums.size(); ++i)  // on a GPU: when all are under way
    if (sums[i].defined())
      result.data<std::int64_t>()[i] = *sums[i].to(Device{}).data<std::int64_t>();
  return result;
}

struct OtherBits {
  std::int64_t element = 0;
  std::string used{}, computed{};
};

// The first one, of two host tensors (n,).
OtherBits first_difference(const Tensor& used, const Tensor& computed) {
  return visit_floating("audit", used.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < used.numel(); ++i) {
      const T a = used.data<T>()[i], b = computed.data<T>()[i];
      if (std::memcmp(&a, &b, sizeof(T)) != 0)
        return OtherBits{i, fmt::format("{}", a), fmt::format("{}", b)};
    }
    return OtherBits{};
  });
}

}  // namespace

Audit::Audit(DistributedDataParallel& ddp, const AuditOptions& options)
    : parameters_(ddp.buckets().parameters()),
      world_(ddp.communicator()),
      communicator_(ddp.communicator()),
      every_(options.every),
      step_(options.taken) {
  check<UsageError>(options.every >= 0 && options.taken >= 0,
                    "[audit] every {} steps, after {} steps: neither can be negative",
                    options.every, options.taken);
}

// Each time the next of the owner's lanes: a function of the step, the same on all ranks.
int Audit::audited_lane(const Step& step, int owner) const {
  const LaneRange range = lanes_of({owner, ranks()}, step.lanes);
  return range.first + static_cast<int>(step_ / every_ % range.count);
}

LaneRecord Audit::again(const Step& step, int lane) const {
  const trace::Slice slice(trace::Kind::backward, "audit");
  const Part part = step.lane(lane);
  LaneRecord record(step.parameters, step.record);
  const LaneScope lanes(part.lanes);
  const LaneRecord::Scope scope(record);
  const Rerun rerun(step.start);
  Tape tape;
  const Tensor loss = part.loss();
  const LaneRecord::OtherGradients aside(tape.parameters_of(loss));
  tape.backward(loss, part.weight);
  record.take_gradients();
  return record;
}

Tensor Audit::audited(const Part& mine, const std::function<Part(int)>& lane) {
  check<UsageError>(mine.lanes != nullptr, "[audit] the batch has no lanes: LoaderOptions::lanes");
  check<StateError>(!Tape::current(), "[audit] a tape is alive: backward() makes its own");
  (void)world_.get("[audit]");
  const std::vector<Parameter>& parameters = parameters_;
  for (const Parameter& parameter : parameters) {
    check<StateError>(parameter.gradient_state() == GradientState::nothing,
                      "[audit] {} has a gradient already: an audited step has one backward",
                      parameter);
    check<StateError>(parameter.managed(),
                      "[audit] {} is under no DistributedDataParallel any more: it has ended",
                      parameter);
  }
  Step step{parameters, lane, mine.lanes->total(), {}, LaneRecord(parameters)};
  Tensor loss;
  {
    const LaneScope lanes(mine.lanes);
    const LaneRecord::Scope scope(step.record);
    Tape tape;
    loss = mine.loss();
    tape.backward(loss, mine.weight);
    loss = loss.detach();
    step.record.take_gradients();
  }
  ++audits_;

  // What owners have used, and what their auditors come to.
  const int own = audited_lane(step, rank()), next = (rank() + 1) % ranks();
  const LaneRecord computed = again(step, audited_lane(step, next));
  const std::int64_t parts = std::ssize(step.record.parts());
  const Tensor both = Tensor::empty({2, parts}, DType::i64);
  both.slice(0, 1).view({parts}).copy_from(fingerprints(step.record, own - mine.lanes->first()));
  both.slice(1, 2).view({parts}).copy_from(fingerprints(computed, 0));
  const Tensor all = Tensor::empty({ranks(), 2, parts}, DType::i64);
  communicator_.all_gather(both, all, "audit").wait();
  const auto said = [&](int of, int which, std::int64_t part) {
    return all.data<std::int64_t>()[(of * 2 + which) * parts + part];
  };
  for (std::int64_t part = 0; part < parts; ++part)
    for (int owner = 0; owner < ranks(); ++owner) {
      const int auditor = (owner + ranks() - 1) % ranks();
      if (said(owner, 0, part) == said(auditor, 1, part)) continue;
      const auto at = static_cast<std::size_t>(part);
      settle(step, {part, owner, auditor, audited_lane(step, owner),
                    row_of(step.record.parts()[at], own - mine.lanes->first()),
                    row_of(computed.parts()[at], 0), said(owner, 0, part)});
    }
  return loss;
}

void Audit::settle(const Step& step, const Dispute& d) const {
  // The judgement: every rank computes the lane once more.
  const auto at = static_cast<std::size_t>(d.part);
  const LaneRecord record = again(step, d.lane);
  const Tensor mine = fingerprints(record, 0).slice(d.part, d.part + 1);
  const Tensor all = Tensor::empty({ranks()}, DType::i64);
  communicator_.all_gather(mine, all, "audit: judgement").wait();
  const auto votes = all.span<std::int64_t>();
  const auto count = [&](std::int64_t vote) { return std::ranges::count(votes, vote); };
  const std::int64_t right = *std::ranges::max_element(votes, {}, count);
  const bool judged = 2 * count(right) > ranks();
  const int wrong = right == d.fingerprint_used ? d.auditor : d.owner;

  // What the two had, on all ranks.
  const LaneRecord::Part& part = record.parts()[at];
  const Tensor& like = part.lanes.defined() ? part.lanes : step.parameters[at].value();
  const auto from = [&](int root, const Tensor& bits) {
    const Tensor host = Tensor::zeros({like.numel()}, like.dtype());
    if (rank() == root && bits.defined()) host.copy_from(bits.detach().view(host.shape()));
    communicator_.broadcast(host, root, "audit: what differs").wait();
    return host;
  };
  const OtherBits first = first_difference(from(d.owner, d.used), from(d.auditor, d.computed));

  const auto known_as = [&](int rank) { return communicator_.membership().known_as(rank); };
  const int owner = known_as(d.owner), auditor = known_as(d.auditor);
  const std::string who = judged ? fmt::format("rank {}", known_as(wrong))
                                 : fmt::format("rank {} or rank {}", owner, auditor);
  const std::string verdict = ranks() == 1 ? "this rank audits itself"
                              : !judged    ? "computed once more, there is no majority"
                                           : fmt::format(
                                                 "computed once more, {} of {} ranks are "
                                                    "against rank {}",
                                                 count(right), ranks(), known_as(wrong));
  const std::string what = fmt::format("element {} of {}", first.element, part.label);
  Blame blame;
  if (judged)
    blame = {{communicator_.membership().in_job(wrong)},
             Fault::miscomputed,
             fmt::format("(lane {} in step {}, {})", d.lane, step_, what)};
  meet_before_error(communicator_, "audit");
  throw blaming(blame,
                AuditError(fmt::format("[audit] step {}: {} computed lane {} wrongly: {} is {} in "
                                       "the step of rank {}, and {} as rank {} computes it; {}",
                                       step_, who, d.lane, what, first.used, owner, first.computed,
                                       auditor, verdict)));
}

}  // namespace lockstep::dist
