// Attention of a tile of query rows with an online softmax.
//   S = scale Q K^T;   P = softmax(S) over the visible keys;   O = P V
// Shapes   query [B, Hq, Lq, Dk], key [B, Hkv, Lk, Dk], value [B, Hkv, Lk, Dv], out [B, Hq, Lq, Dv], the last dimension
//          contiguous, Dk <= kDk, Dv <= kDv: smaller heads are padded with zeros on their way. A row is a query of one
//          head; the heads that share a key head are neighbours, so that a tile spans few positions.
// Grid     threadgroups (tiles of kRows rows * splits, Hkv, B), the last rows first: if causal they have most to do;
//          threadgroup (32, kSimdgroups). With more than one split the keys of a tile are divided evenly among them,
//          and sdpa_decode_reduce adds up their partial results.
// Method   A step takes 8 keys a simdgroup. Each simdgroup multiplies all rows of the tile, which threadgroup memory
//          holds, with keys of its own; when the weights have met there too, all rows of weights with columns of its
//          own of the values. So each key and value goes straight to the registers of one simdgroup, once a tile, and a
//          step has two barriers. Scores, weights, sums and O are float32. Of 8 keys that no row sees nothing is read
//          or multiplied; of a single one the values are not read.
// Sources  the running maximum and sum: FlashAttention (Dao et al., 2022); which lane holds which element of a matrix:
//          MLX steel (MIT)
#include <metal_stdlib>

#include "common/instantiate.h"
#include "sdpa_prefill_tile.h"

using namespace metal;

template <typename T, int kDk, int kDv, int kRows, int kSimdgroups>
[[kernel]] void sdpa_prefill(device const T* query [[buffer(0)]], device const T* key [[buffer(1)]],
                             device const T* value [[buffer(2)]], device T* out [[buffer(3)]],
                             device const void* mask [[buffer(4)]], device const void* seqused [[buffer(5)]],
                             device const void* sinks [[buffer(6)]], constant SdpaParams& p [[buffer(7)]],
                             device float2* references [[buffer(8)]], device float* weighted [[buffer(9)]],
                             uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                             ushort simdgroup_index [[simdgroup_index_in_threadgroup]],
                             ushort lane [[thread_index_in_simdgroup]]) {
  typedef PrefillShape<T, kDk, kDv, kRows, kSimdgroups> S;
  threadgroup vec<T, 4> queries[kRows * S::kQueryStride / 4];  // vectors, for their alignment
  threadgroup float4 weights[kRows * S::kWeightStride / 4];
  threadgroup float maxima[kSimdgroups * kRows];
  threadgroup uint seen[2 * kSimdgroups];
  threadgroup Row rows[kRows];

  const Place at = place_of(lane);
  const int simdgroup = simdgroup_index, number = int(groups.x - 1 - group.x), split = number % p.splits;
  const long all_rows = long(p.Lq) * p.group;
  PrefillTile<S> tile;
  tile.queries = reinterpret_cast<threadgroup T*>(queries);
  tile.weights = reinterpret_cast<threadgroup float*>(weights);
  tile.maxima = maxima, tile.seen = seen, tile.rows = rows;
  tile.batch = int(group.z), tile.key_head = int(group.y);
  tile.first_row = long(number / p.splits) * kRows;
  tile.count = int(min(long(kRows), all_rows - tile.first_row));
  tile.blocks = (tile.count + 7) / 8;
  find_rows<S>(tile, p, seqused, 32 * simdgroup + lane);
  copy_queries<S>(tile, query, p, simdgroup, lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const int steps = (tile.last.end - tile.first.begin + S::kKeys - 1) / S::kKeys;
  const int share = (steps + p.splits - 1) / p.splits * S::kKeys;
  const int begin = min(tile.first.begin + split * share, tile.last.end), end = min(begin + share, tile.last.end);
  key += tile.batch * p.key.batch + tile.key_head * p.key.head;
  value += tile.batch * p.value.batch + tile.key_head * p.value.head;
  PrefillSums<S> sums;
  clear<S>(sums);
  threadgroup uint* seen_now = seen;
  for (int step = begin; step < end; step += S::kKeys) {
    float2 s[S::kBlocks];
    score<S>(s, sums, tile, seen_now, key, mask, p, step + 8 * simdgroup, end, simdgroup, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    PrefillValues<S> values;
    load_values<S>(values, value, seen_now[0], step, p, simdgroup, at);
    weigh<S>(s, sums, tile, simdgroup, at);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    add_values<S>(sums, values, tile, seen_now, value, p, step, simdgroup, at);
    seen_now = seen_now == seen ? seen + kSimdgroups : seen;  // who is still at the values reads the old ones
  }
  gather_sums<S>(sums, tile, simdgroup, at);

  const long tile_row = (long(tile.batch) * p.Hkv + tile.key_head) * all_rows + tile.first_row;
  const long first_partial = tile_row * p.splits + split;
  TMO_UNROLL
  for (int i = 0; i < S::kBlocks; ++i) {
    const int r = 8 * i + at.row;
    if (r < tile.count) {
      const Row row = rows[r];
      const bool sees = (sums.rows_seen >> i & 1u) != 0;
      const int column = S::kColumns * simdgroup;
      if (p.splits == 1) {
        device T* to = out + tile.batch * p.out.batch + row.head * p.out.head + row.query * p.out.row;
        const float factor = normalizer(p, sinks, row.head, sums.maximum[i], sums.sum[i]);
        store_row<S, T>(to, sums.o[i], factor, sees, column, p.Dv, p.vectors != 0, at);
      } else {
        const long partial = first_partial + r * p.splits;
        // -inf tells that no key was seen; where all scores are -inf, any other number does.
        const float reference = !sees ? -INFINITY : larger(sums.maximum[i], -FLT_MAX);
        if (simdgroup == 0 && at.column == 0) references[partial] = float2(reference, sums.sum[i]);
        store_row<S, float>(weighted + partial * p.Dv, sums.o[i], 1.0f, sees, column, p.Dv, false, at);
      }
    }
  }
}

#define TMO_SDPA_PREFILL(name, type, dk, dv, rows, simdgroups) \
  TMO_INSTANTIATE("sdpa_prefill_" #name "_dk" #dk "_dv" #dv, sdpa_prefill, type, dk, dv, rows, simdgroups)

// The rows of a tile: as many as leave room for other threadgroups in a core's threadgroup memory, or at least fit.
#define TMO_SDPA_PREFILL_SIZES(name, type, small, middle, large) \
  TMO_SDPA_PREFILL(name, type, 64, 64, small, 4)                 \
  TMO_SDPA_PREFILL(name, type, 80, 80, small, 5)                 \
  TMO_SDPA_PREFILL(name, type, 96, 96, small, 6)                 \
  TMO_SDPA_PREFILL(name, type, 112, 112, small, 7)               \
  TMO_SDPA_PREFILL(name, type, 128, 128, small, 8)               \
  TMO_SDPA_PREFILL(name, type, 192, 128, middle, 8)              \
  TMO_SDPA_PREFILL(name, type, 192, 192, middle, 6)              \
  TMO_SDPA_PREFILL(name, type, 256, 256, middle, 8)              \
  TMO_SDPA_PREFILL(name, type, 576, 512, large, 8)

TMO_SDPA_PREFILL_SIZES(f32, float, 32, 16, 8)
TMO_SDPA_PREFILL_SIZES(f16, half, 32, 32, 16)
TMO_SDPA_PREFILL_SIZES(bf16, bfloat, 32, 32, 16)
