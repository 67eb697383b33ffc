// What torch is told on every machine: the schemas, and which kernel serves which dispatch key. The kernels are
// elsewhere; mps/library.mm adds those for Apple GPUs.

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>
#include <torch/version.h>

#include "autograd/kernels.h"
#include "core/kernels.h"
#include "core/schemas.h"
#include "ops/gated_delta_rule_kernels.h"
#include "ops/gather_qmv_kernels.h"
#include "ops/sdpa_kernels.h"

namespace {

// While it lives, a kernel that replaces one of a package that was first with this op does so without torch's warning.
// Only ours is silenced: torch's "has warned once" mark stays as it is.
class QuietOverride {
  struct Drop : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };
  Drop drop_;
  c10::WarningUtils::WarningHandlerGuard handler_{&drop_};
  c10::WarningUtils::WarnAlways always_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(metal, m) {
  if (!tmo::conflict().empty()) return;
  for (const char* text : tmo::kSchemas) {
    c10::FunctionSchema schema = torch::schema(text);
    if (c10::Dispatcher::singleton().findSchema({schema.name(), schema.overload_name()})) continue;
    m.def(std::move(schema), {at::Tag::pt2_compliant_tag});
  }
}

TORCH_LIBRARY_IMPL(metal, CPU, m) {
  if (!tmo::conflict().empty()) return;
  m.impl("sdpa", &tmo::cpu::sdpa);
  m.impl("gather_qmv", &tmo::cpu::gather_qmv);
  m.impl("gated_delta_rule", &tmo::cpu::gated_delta_rule);
}

TORCH_LIBRARY_IMPL(metal, Meta, m) {
  if (!tmo::conflict().empty()) return;
  m.impl("sdpa", &tmo::meta::sdpa);
  m.impl("gather_qmv", &tmo::meta::gather_qmv);
  m.impl("gated_delta_rule", &tmo::meta::gated_delta_rule);
}

// Forward runs; backward raises "derivative for metal::<op> is not implemented".
TORCH_LIBRARY_IMPL(metal, Autograd, m) {
  if (!tmo::conflict().empty()) return;
  const QuietOverride quiet;
  m.impl("sdpa", torch::autograd::autogradNotImplementedFallback());
  m.impl("gather_qmv", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_delta_rule", &tmo::autograd::gated_delta_rule);
}

namespace {

// As torch's own scaled_dot_product_attention under autocast: query, key, value and a float mask in the lower
// precision. The other two ops run as given.
template <at::DeviceType kDevice>
at::Tensor sdpa_autocast(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                         std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                         std::optional<c10::SymInt> sliding_window, double softcap,
                         const std::optional<at::Tensor>& sinks) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("metal::sdpa", "").typed<decltype(tmo::meta::sdpa)>();
  const auto dtype = at::autocast::get_lower_precision_fp_from_device_type(kDevice);
  const auto cast = [&](const at::Tensor& tensor) { return at::autocast::cached_cast(dtype, tensor, kDevice); };
  return op.call(cast(query), cast(key), cast(value), at::autocast::cached_cast(dtype, attn_mask, kDevice), dropout_p,
                 is_causal, scale, enable_gqa, seqused_k, std::move(sliding_window), softcap, sinks);
}

}  // namespace

TORCH_LIBRARY_IMPL(metal, ADInplaceOrView, m) {
  if (!tmo::conflict().empty()) return;
  const QuietOverride quiet;
  m.impl("gated_delta_rule", &tmo::autograd::gated_delta_rule_mutating);
}

TORCH_LIBRARY_IMPL(metal, AutocastCPU, m) {
  if (!tmo::conflict().empty()) return;
  m.impl("sdpa", &sdpa_autocast<at::kCPU>);
}

TORCH_LIBRARY_IMPL(metal, AutocastMPS, m) {
  if (!tmo::conflict().empty()) return;
  m.impl("sdpa", &sdpa_autocast<at::kMPS>);
}

PYBIND11_MODULE(_C, m) {
  if (!tmo::conflict().empty()) throw pybind11::import_error(tmo::conflict());
  m.attr("torch_version") = TORCH_VERSION;
  // Every Metal kernel that a call can run, as library/kernel.
  m.def("metal_kernels", [] {
    std::vector<std::string> names;
    for (const auto& of_op : {tmo::sdpa_kernels(), tmo::gather_qmv_kernels(), tmo::gated_delta_rule_kernels()}) {
      names.insert(names.end(), of_op.begin(), of_op.end());
    }
    return names;
  });
}
