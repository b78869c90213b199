#include "lockstep/kernels/optimizer.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

/// One i64 beside the value.
void check_one(std::string_view operation, std::string_view name, const Tensor& tensor,
               const Tensor& value) {
  check_beside(operation, name, tensor, DType::i64, value);
  check<ShapeError>(tensor.numel() == 1, "[{}] {}: expected one element, got {}", operation, name,
                    tensor.shape());
}

void check_fingerprint(std::string_view operation, const Tensor& sum, const Tensor& value) {
  check_beside(operation, "fingerprint", sum, DType::i64, value);
  check<ShapeError>(sum.numel() == 2, "[{}] fingerprint: expected two elements, got {}", operation,
                    sum.shape());
}

template <class Item, class Config>
void check_item(std::string_view operation, const Item& item, const Config& config) {
  check_defined(operation, "value", item.value);
  check_differentiable(operation, item.value);
  check_alike(operation, "gradient", item.gradient, item.value);
  if (item.fingerprint.sum) check_fingerprint(operation, *item.fingerprint.sum, item.value);
  visit_kept(item, config, [&](std::string_view name, const Tensor& tensor, bool kept) {
    if (kept) check_alike(operation, name, tensor, item.value);
  });
  if constexpr (requires { item.step; }) check_one(operation, "step", item.step, item.value);
}

/// `run` takes the neighbouring items that lie on one device.
template <class Item, class Config>
void step(std::string_view operation, std::span<const Item> items, const Config& config,
          void (Backend::*run)(std::span<const Item>, const Config&)) {
  for (const Item& item : items) check_item(operation, item, config);
  for (const Item& item : items) item.value.storage().changed();
  while (!items.empty()) {
    std::size_t n = 1;
    const Device device = items[0].value.device();
    while (n < items.size() && items[n].value.device() == device) ++n;
    (backend_of(device).*run)(items.first(n), config);
    items = items.subspan(n);
  }
}

}  // namespace

void sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  step("sgd_step", items, config, &Backend::sgd_step);
}
void adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  step("adam_step", items, config, &Backend::adam_step);
}
void rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  step("rmsprop_step", items, config, &Backend::rmsprop_step);
}
void lion_step(std::span<const LionItem> items, const LionConfig& config) {
  step("lion_step", items, config, &Backend::lion_step);
}

void add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  if (!fingerprint.sum) return;
  check<UsageError>(!tensors.empty() && tensors.size() <= 4,
                    "[add_fingerprint] takes one to four tensors, got {}", tensors.size());
  check_defined("add_fingerprint", "tensor", tensors[0]);
  check_differentiable("add_fingerprint", tensors[0]);
  for (const Tensor& tensor : tensors) check_alike("add_fingerprint", "tensor", tensor, tensors[0]);
  check_fingerprint("add_fingerprint", *fingerprint.sum, tensors[0]);
  backend_of(tensors[0].device()).add_fingerprint(tensors, fingerprint);
}

}  // namespace lockstep::kernels
