// Attention of a tile of query rows with an online softmax.
//   S = scale Q K^T;   P = softmax(S) over the visible keys;   O = P V
// Shapes   query [B, Hq, Lq, Dk], key [B, Hkv, Lk, Dk], value [B, Hkv, Lk, Dv], out [B, Hq, Lq, Dv], the last dimension
//          contiguous, Dk <= kDk, Dv <= kDv: smaller heads are padded with zeros on their way. A row is a query of one
//          head; the heads that share a key head are neighbours, so that a tile spans few positions.
// Grid     threadgroups (tiles, Hkv, B), the last rows first: if causal they have most to do;
//          threadgroup (32, kSimdgroups)
// Method   A step takes 8 keys a simdgroup. Each simdgroup multiplies all rows of the tile (in threadgroup memory,
// once)
//          with keys of its own; when the weights have met in threadgroup memory, all rows of weights with columns of
//          its own of the values. So each key and value goes straight to the registers of one simdgroup, once a tile,
//          and a step has two barriers. Scores, weights, sums and O are float32. Keys that no row sees are not read.
// Sources  the running maximum and sum: FlashAttention (Dao et al., 2022); which lane holds which element of a matrix:
//          MLX steel (MIT)
#include <metal_stdlib>

#include "sdpa_prefill_tile.h"

using namespace metal;

template <typename T, int kDk, int kDv, int kRows, int kSimdgroups>
[[kernel]] void sdpa_prefill(device const T* query [[buffer(0)]], device const T* key [[buffer(1)]],
                             device const T* value [[buffer(2)]], device T* out [[buffer(3)]],
                             device const void* mask [[buffer(4)]], device const void* seqused [[buffer(5)]],
                             device const void* sinks [[buffer(6)]], constant SdpaParams& p [[buffer(7)]],
                             uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],
                             ushort simdgroup [[simdgroup_index_in_threadgroup]],
                             ushort lane [[thread_index_in_simdgroup]]) {
  constexpr int kBlocks = kRows / 8;
  constexpr int kKeys = 8 * kSimdgroups;       // a step
  constexpr int kColumns = kDv / kSimdgroups;  // of the values, a simdgroup
  constexpr int kKeyRun = kDk % 32 == 0 ? 4 : 2;
  constexpr int kValueRun = kColumns % 32 == 0 ? 4 : 2;
  constexpr int kMatrices = kColumns / 8, kParts = kMatrices / kValueRun;
  constexpr int kQueryStride = kDk + 16 / int(sizeof(T));  // what is added spreads the rows over the banks
  constexpr int kWeightStride = kKeys + 4;

  threadgroup T queries[kRows * kQueryStride];
  threadgroup float weights[kRows * kWeightStride];
  threadgroup float maxima[kSimdgroups * kRows];
  threadgroup uint seen[2 * kSimdgroups];  // which of a simdgroup's keys, a bit each; for two steps in turn
  threadgroup Row rows[kRows];

  const Place at = place_of(lane);
  const int me = simdgroup, key_head = int(group.y), batch = int(group.z);
  const long first_row = long(groups.x - 1 - group.x) * kRows;
  const int count = int(min(long(kRows), long(p.Lq) * p.group - first_row));
  const int blocks = (count + 7) / 8;
  const int used = used_keys(p, seqused, batch);
  // Rows beyond the last repeat it: they neither see nor hide a key of their own.
  for (int r = 32 * me + lane; r < kRows; r += 32 * kSimdgroups) {
    rows[r] = row_at(p, first_row + min(r, count - 1), key_head, batch, used);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  copy_queries<T, kDk, kRows, kQueryStride>(queries, query + batch * p.query.batch, p, rows, count, me, kSimdgroups,
                                            lane);
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const KeyRange first_keys = rows[0].keys, last_keys = rows[count - 1].keys;
  key += batch * p.key.batch + key_head * p.key.head;
  value += batch * p.value.batch + key_head * p.value.head;

  float2 o[kBlocks][kMatrices];
  float maximum[kBlocks], sum[kBlocks];  // the sum: of this lane's columns of this simdgroup's keys
  uint rows_seen = 0;
  TMO_UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    maximum[i] = -INFINITY;
    sum[i] = 0.0f;
    TMO_UNROLL
    for (int m = 0; m < kMatrices; ++m) o[i][m] = float2(0.0f);
  }

  threadgroup uint* seen_now = seen;
  for (int step = first_keys.begin; step < last_keys.end; step += kKeys) {
    const int own = step + 8 * me;
    const bool all_seen = p.has_mask == 0 && own >= last_keys.begin && own + 8 <= first_keys.end;
    float2 s[kBlocks], bias[kBlocks];
    uint own_seen = 0xff;
    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) s[i] = bias[i] = float2(0.0f);
    if (all_seen) {
      rows_seen = ~0u;
    } else {
      own_seen = fill_bias<kBlocks>(bias, rows_seen, p, mask, rows, own, at);
    }
    if (own_seen != 0) {
      multiply_keys<T, kDk, kBlocks, kKeyRun, kQueryStride>(s, queries, key + own * p.key.row, last_keys.end - own, p,
                                                            blocks, at);
    }
    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      s[i] *= p.scale;
      s[i] = float2(final_score(p, s[i].x, bias[i].x), final_score(p, s[i].y, bias[i].y));
      const float m = row_maximum(s[i]);
      if (at.column == 0) maxima[me * kRows + 8 * i + at.row] = m;
    }
    if (lane == 0) seen_now[me] = own_seen;
    threadgroup_barrier(mem_flags::mem_threadgroup);

    TMO_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      const int r = 8 * i + at.row;
      float m = maximum[i];
      for (int g = 0; g < kSimdgroups; ++g) m = larger(maxima[g * kRows + r], m);
      const float origin = m == -INFINITY ? 0.0f : m;  // -inf - -inf is no number
      const float factor = weight_of(maximum[i] - origin);
      const float2 w = float2(weight_of(s[i].x - origin), weight_of(s[i].y - origin));
      *reinterpret_cast<threadgroup float2*>(weights + r * kWeightStride + 8 * me + at.column) = w;
      maximum[i] = m;
      sum[i] = sum[i] * factor + (w.x + w.y);
      TMO_UNROLL
      for (int m = 0; m < kMatrices; ++m) o[i][m] *= factor;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    for (int g = 0; g < kSimdgroups; ++g) {
      const uint keys_seen = seen_now[g];
      if (keys_seen == 0) continue;
      float2 w[kBlocks];
      TMO_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        w[i] = *reinterpret_cast<threadgroup const float2*>(weights + (8 * i + at.row) * kWeightStride + 8 * g +
                                                            at.column);
      }
      // The value of a key that no row sees is taken as 0, not multiplied by 0: it may be NaN.
      const int size = (keys_seen >> at.row & 1u) != 0 ? p.Dv : 0;
      multiply_values<T, kBlocks, kParts, kValueRun>(o, w, value + (step + 8 * g + at.row) * p.value.row, size,
                                                     kColumns * me, p.vectors != 0, blocks, at);
    }
    seen_now = seen_now == seen ? seen + kSimdgroups : seen;
  }

  // The simdgroups add up their sums, in place of the maxima and weights.
  threadgroup_barrier(mem_flags::mem_threadgroup);
  rows_seen = row_or(rows_seen);
  TMO_UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    const float own = row_sum(sum[i]);
    if (at.column == 0) {
      maxima[me * kRows + 8 * i + at.row] = own;
      weights[me * kRows + 8 * i + at.row] = float(rows_seen >> i & 1u);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  TMO_UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    const int r = 8 * i + at.row;
    float total = 0.0f, sees = 0.0f;
    for (int g = 0; g < kSimdgroups; ++g) {
      total += maxima[g * kRows + r];
      sees += weights[g * kRows + r];
    }
    if (r < count) {
      const Row row = rows[r];
      const float factor = normalizer(p, sinks, row.head, maximum[i], total);
      device T* to = out + batch * p.out.batch + row.head * p.out.head + row.query * p.out.row;
      TMO_UNROLL
      for (int part = 0; part < kParts; ++part) {
        float run[2 * kValueRun];
        TMO_UNROLL
        for (int t = 0; t < kValueRun; ++t) {
          const float2 x = o[i][kValueRun * part + t] * factor;
          run[t] = sees == 0.0f ? 0.0f : x.x;
          run[kValueRun + t] = sees == 0.0f ? 0.0f : x.y;
        }
        store_run<T>(to, run, kColumns * me + kValueRun * (8 * part + at.column), p.Dv, p.vectors != 0);
      }
    }
  }
}

#define TMO_SDPA_PREFILL(name, type, dk, dv, rows, simdgroups)                 \
  template [[host_name("sdpa_prefill_" #name "_dk" #dk "_dv" #dv)]] [[kernel]] \
  decltype(sdpa_prefill<type, dk, dv, rows, simdgroups>) sdpa_prefill<type, dk, dv, rows, simdgroups>;

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
