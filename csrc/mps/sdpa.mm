// metal::sdpa on MPS: a kernel for few query rows, which the reading of keys bounds, and one for tiles of them.
#include "../ops/sdpa.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>

#include "../ops/sdpa_kernels.h"
#include "alignment.h"
#include "dtype.h"
#include "kernels/sdpa_params.h"
#include "launch.h"
#include "ops.h"

namespace tmo::mps {
namespace {

// The tensors of a call as the kernels take them: 4-D, the last dimension contiguous. An undefined one was not given.
struct SdpaArguments {
  at::Tensor query, key, value, out, mask, seqused, sinks;
};

at::Tensor four_dimensional(const at::Tensor& tensor) { return tensor.dim() == 4 ? tensor : tensor.unsqueeze(0); }

// The kernels want the last dimension contiguous.
at::Tensor readable(const at::Tensor& tensor) {
  const at::Tensor four = four_dimensional(tensor);
  return four.size(3) == 1 || four.stride(3) == 1 ? four : four.contiguous();
}

SdpaStrides strides_of(const at::Tensor& tensor) {
  return {tensor.size(0) == 1 ? 0 : tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// Whether each row starts at, and has, a multiple of four elements.
bool in_vectors(const at::Tensor& tensor) { return rows_start_at_multiples(tensor, 4) && tensor.size(3) % 4 == 0; }

void describe_tensors(SdpaParams& p, const SdpaArguments& t) {
  p.query = strides_of(t.query), p.key = strides_of(t.key), p.value = strides_of(t.value), p.out = strides_of(t.out);
  p.vectors = in_vectors(t.query) && in_vectors(t.key) && in_vectors(t.value) && in_vectors(t.out);
  p.has_mask = t.mask.defined(), p.has_sinks = t.sinks.defined();
  if (p.has_mask) {
    p.mask = {t.mask.stride(0), t.mask.stride(1), t.mask.stride(2)};
    p.mask_key = t.mask.stride(3);
    p.mask_dtype = dtype_of(t.mask);
  }
  if (p.has_sinks) p.sinks_stride = t.sinks.stride(0), p.sinks_dtype = dtype_of(t.sinks);
  if (t.seqused.defined()) {
    p.seqused_stride = t.seqused.stride(0);
    p.seqused_bits = t.seqused.scalar_type() == at::kLong ? 64 : 32;
  }
}

struct Threadgroups {
  uint64_t tiles;  // of query rows, a key head
  Size size;
};

// Runs a kernel of either library, whose keys are divided into p.splits parts; of more than one, the partial results
// are added up after it.
void run(const char* library, const std::string& kernel, const Threadgroups& groups, const SdpaArguments& t,
         const SdpaParams& p) {
  const int64_t batches = t.out.size(0), rows = int64_t(p.Lq) * p.group;
  at::Tensor references, weighted;
  if (p.splits > 1) {
    const auto options = t.query.options().dtype(at::kFloat);
    references = at::empty({batches, p.Hkv, rows, p.splits, 2}, options);
    weighted = at::empty({batches, p.Hkv, rows, p.splits, p.Dv}, options);
  }
  launch(library, kernel, {groups.tiles * p.splits, uint64_t(p.Hkv), uint64_t(batches)}, groups.size,
         {t.query, t.key, t.value, t.out, t.mask, t.seqused, t.sinks, p, references, weighted});
  if (p.splits == 1) return;
  launch(kSdpaDecode, sdpa_reduce_kernel(t.query.scalar_type()), {uint64_t(rows), uint64_t(p.Hkv), uint64_t(batches)},
         {kSdpaReduceThreads}, {references, weighted, t.sinks, t.out, p});
}

void run_decode(const SdpaArguments& t, SdpaParams p, const SdpaDecodeChoice& choice) {
  p.lanes = choice.lanes;
  p.splits = sdpa_decode_splits(p.Hkv * t.out.size(0), p.Lk, gpu_cores(), kSdpaMaxSplits);
  run(kSdpaDecode, choice.kernel, {1, {kSdpaDecodeThreads}}, t, p);
}

void run_prefill(const SdpaArguments& t, SdpaParams p) {
  const auto choice = choose_sdpa_prefill(p.Dk, p.Dv, t.query.scalar_type());
  const int64_t tiles = (int64_t(p.Lq) * p.group + choice.rows - 1) / choice.rows;
  const int64_t simdgroups = tiles * p.Hkv * t.out.size(0) * choice.simdgroups;
  p.splits = sdpa_prefill_splits(simdgroups, p.Lk, gpu_cores(), kSdpaMaxSplits);
  run(kSdpaPrefill, choice.kernel, {uint64_t(tiles), {32, uint64_t(choice.simdgroups)}}, t, p);
}

}  // namespace

at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<int64_t> sliding_window, double softcap, const std::optional<at::Tensor>& sinks) {
  const auto s = check_sdpa<int64_t>({query, key, value, attn_mask, seqused_k, sinks},
                                     {dropout_p, is_causal, scale, enable_gqa, sliding_window, softcap});
  check_sdpa_counts(s);
  const auto layout = sdpa_output(query, s);
  at::Tensor out = at::empty_strided(layout.sizes, layout.strides, query.options());
  if (out.numel() == 0) return out;
  if (s.Lk == 0) return out.zero_();

  SdpaArguments t{readable(query), readable(key), readable(value), four_dimensional(out), {}, {}, {}};
  if (attn_mask) t.mask = attn_mask->expand({s.B, s.Hq, s.Lq, s.Lk});
  t.seqused = value_or_undefined(seqused_k), t.sinks = value_or_undefined(sinks);
  SdpaParams p{};
  describe_tensors(p, t);
  p.Hq = s.Hq, p.Hkv = s.Hkv, p.Lq = s.Lq, p.Lk = s.Lk, p.Dk = s.Dk, p.Dv = s.Dv;
  p.group = s.Hq / s.Hkv;
  p.is_causal = is_causal, p.lower_right = seqused_k.has_value();
  // A window that reaches back to the first key from everywhere is none.
  p.window = sliding_window && *sliding_window < std::max(s.Lq, s.Lk) ? *sliding_window : 0;
  p.scale = static_cast<float>(scale ? *scale : 1.0 / std::sqrt(static_cast<double>(s.Dk)));
  p.softcap = static_cast<float>(softcap);
  const auto choice = choose_sdpa_decode(s.Dk, s.Dv, query.scalar_type(), p.vectors);
  if (sdpa_decodes(s.Lq * p.group, choice)) {
    run_decode(t, p, choice);
  } else {
    run_prefill(t, p);
  }
  return out;
}

}  // namespace tmo::mps
