#include "lockstep/kernels/optimizer.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

void check_fingerprint(std::string_view operation, const Fingerprint& fingerprint,
                       const Tensor& value) {
  if (!fingerprint.sum) return;
  check_beside(operation, "fingerprint", *fingerprint.sum, DType::i64, value);
  check<ShapeError>(fingerprint.sum->numel() == 1, "[{}] fingerprint: expected one element, got {}",
                    operation, fingerprint.sum->shape());
}

template <class Item>
void check_item(std::string_view operation, const Item& item) {
  check_defined(operation, "value", item.value);
  check_differentiable(operation, item.value);
  check_alike(operation, "gradient", item.gradient, item.value);
  check_fingerprint(operation, item.fingerprint, item.value);
}

/// Calls step(run) for every run of neighbouring items on one device.
template <class Item, class F>
void for_each_device(std::span<const Item> items, F&& step) {
  while (!items.empty()) {
    std::size_t n = 1;
    const Device device = items[0].value.device();
    while (n < items.size() && items[n].value.device() == device) ++n;
    step(backend_of(device), items.first(n));
    items = items.subspan(n);
  }
}

}  // namespace

void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  for (const SgdItem& item : items) {
    check_item("sgd_step", item);
    if (config.momentum != 0) check_alike("sgd_step", "momentum", item.momentum, item.value);
    item.value.storage().changed();
  }
  for_each_device(items, [&](Backend& backend, auto run) { backend.sgd_step(run, config); });
}

void adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  for (const AdamItem& item : items) {
    check_item("adam_step", item);
    check_alike("adam_step", "mean", item.mean, item.value);
    check_alike("adam_step", "variance", item.variance, item.value);
    if (config.amsgrad) check_alike("adam_step", "max_variance", item.max_variance, item.value);
    check_beside("adam_step", "step", item.step, DType::i64, item.value);
    check<ShapeError>(item.step.numel() == 1, "[adam_step] step: expected one element, got {}",
                      item.step.shape());
    item.value.storage().changed();
  }
  for_each_device(items, [&](Backend& backend, auto run) { backend.adam_step(run, config); });
}

void rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  for (const RmspropItem& item : items) {
    check_item("rmsprop_step", item);
    check_alike("rmsprop_step", "square", item.square, item.value);
    if (config.centered) check_alike("rmsprop_step", "mean", item.mean, item.value);
    if (config.momentum != 0) check_alike("rmsprop_step", "momentum", item.momentum, item.value);
    item.value.storage().changed();
  }
  for_each_device(items, [&](Backend& backend, auto run) { backend.rmsprop_step(run, config); });
}

void lion_step(std::span<const LionItem> items, const LionConfig& config) {
  for (const LionItem& item : items) {
    check_item("lion_step", item);
    check_alike("lion_step", "momentum", item.momentum, item.value);
    item.value.storage().changed();
  }
  for_each_device(items, [&](Backend& backend, auto run) { backend.lion_step(run, config); });
}

void add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  if (!fingerprint.sum) return;
  check<UsageError>(tensors.size() >= 1 && tensors.size() <= 4,
                    "[add_fingerprint] takes one to four tensors, got {}", tensors.size());
  check_defined("add_fingerprint", "tensor", tensors[0]);
  check_differentiable("add_fingerprint", tensors[0]);
  for (const Tensor& tensor : tensors) check_alike("add_fingerprint", "tensor", tensor, tensors[0]);
  check_fingerprint("add_fingerprint", fingerprint, tensors[0]);
  backend_of(tensors[0].device()).add_fingerprint(tensors, fingerprint);
}

}  // namespace lockstep::kernels
