#include "sdpa_prefill.h"

#include <ATen/ops/empty.h>

#include "../ops/sdpa_kernels.h"
#include "launch.h"

namespace tmo::mps {

void sdpa_prefill(const SdpaArguments& t, SdpaParams p) {
  const auto choice = choose_sdpa_prefill(p.Dk, p.Dv, t.query.scalar_type());
  const int64_t batches = t.out.size(0), rows = int64_t(p.Lq) * p.group;
  const int64_t tiles = (rows + choice.rows - 1) / choice.rows;
  const int64_t simdgroups = tiles * p.Hkv * batches * choice.simdgroups;
  const int64_t splits = sdpa_prefill_splits(simdgroups, p.Lk, gpu_cores(), kSdpaMaxSplits);
  p.splits = splits;
  at::Tensor references, weighted;
  if (splits > 1) {
    const auto options = t.query.options().dtype(at::kFloat);
    references = at::empty({batches, p.Hkv, rows, splits, 2}, options);
    weighted = at::empty({batches, p.Hkv, rows, splits, p.Dv}, options);
  }
  launch(kSdpaPrefill, choice.kernel, {uint64_t(tiles * splits), uint64_t(p.Hkv), uint64_t(batches)},
         {32, uint64_t(choice.simdgroups)},
         {t.query, t.key, t.value, t.out, t.mask, t.seqused, t.sinks, p, references, weighted});
  if (splits > 1) sdpa_reduce(t, p, references, weighted);
}

}  // namespace tmo::mps
