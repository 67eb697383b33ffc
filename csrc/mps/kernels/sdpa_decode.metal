// Attention of a few query rows: bound by the reading of keys and values.
//   out = softmax(scale query key^T) value
// Shapes   query [B, Hq, Lq, Dk], key [B, Hkv, Lk, Dk], value [B, Hkv, Lk, Dv], out [B, Hq, Lq, Dv]; any strides but
//          the last. A row is a query of one head; those of the heads that share a key head are neighbours.
// Grid     sdpa_decode: (splits, Hkv, B) threadgroups of 128 threads; with more than one split also
//          sdpa_decode_reduce: (rows, Hkv, B) threadgroups of 128 threads
// Method   The keys that some row sees are divided evenly over the splits: how many are in use is known on the device
//          only. kLanes lanes share a key and its value, which are loaded once for all rows; a product takes
//          log2(kLanes) shuffles for 32 / kLanes keys. Each group of lanes has a softmax of its own over its keys; all
//          are merged at the end, so that the loop has no barrier. The reference of the weights moves only when a score
//          exceeds it by much, which is rare.
// Sources  splits: Flash-Decoding (Dao et al., 2023)
#include <metal_stdlib>

#include "common/instantiate.h"
#include "sdpa_decode.h"

using namespace metal;

template <typename T, int kDk, int kDv, int kLanes, int kRows>
[[kernel]] void sdpa_decode(device const T* query [[buffer(0)]], device const T* key [[buffer(1)]],
                            device const T* value [[buffer(2)]], device T* out [[buffer(3)]],
                            device const void* mask [[buffer(4)]], device const void* seqused [[buffer(5)]],
                            device const void* sinks [[buffer(6)]], constant SdpaParams& p [[buffer(7)]],
                            device float2* references [[buffer(8)]], device float* weighted [[buffer(9)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            ushort thread_index [[thread_index_in_threadgroup]],
                            ushort simdgroup [[simdgroup_index_in_threadgroup]],
                            ushort lane_index [[thread_index_in_simdgroup]]) {
  typedef DecodeShape<T, kDk, kDv, kLanes, kRows> S;
  threadgroup float part[kSimdgroups * kDv];
  threadgroup float2 part_reference[kSimdgroups];

  const DecodePlace at = place_in<S>(p, seqused, group, int(lane_index));
  const long first_partial = partial_of(p, at.batch, at.kv_head, 0) + group.x;
  if (p.splits > 1 && at.begin >= at.end) {
    if (int(thread_index) < at.rows) {
      references[first_partial + int(thread_index) * p.splits] = float2(-INFINITY, 0.0f);
    }
    return;
  }
  const int Dk = kLanes == 0 ? p.Dk : kDk, Dv = kLanes == 0 ? p.Dv : kDv;
  DecodeRows<S> rows;
  load_rows<S>(rows, query, seqused, p, at);
  key += at.batch * p.key.batch + at.kv_head * p.key.head;
  value += at.batch * p.value.batch + at.kv_head * p.value.head;

  for (int base = at.begin + int(simdgroup) * at.streams; base < at.end; base += kSimdgroups * at.streams) {
    const int j = base + at.stream;
    float bias[kRows];
    const bool wanted = fill_bias<S>(bias, rows, mask, p, at, j);
    // A key that no row sees is not read: what lies there, NaN even, counts for nothing.
    float k[S::kKeyShare], v[S::kValueShare];
    load_part<T, S::kKeyShare, S::kKeyRun, S::kWholeKey>(k, key + j * p.key.row, at.lane, at.lanes, wanted ? Dk : 0);
    load_part<T, S::kValueShare, S::kValueRun, S::kWholeValue>(v, value + j * p.value.row, at.lane, at.lanes,
                                                               wanted ? Dv : 0);
    add_key<S>(rows, k, v, bias, p, at);
  }

  // The streams of a simdgroup, then the simdgroups.
  TMO_UNROLL
  for (int r = 0; r < kRows; ++r) {
    if (r < at.rows) {
      const float2 own =
          gather_streams<S>(rows, r, rows.o[r], rows.reference[r], rows.sum[r], part + int(simdgroup) * kDv, p, at);
      if (lane_index == 0) part_reference[simdgroup] = own;
      threadgroup_barrier(mem_flags::mem_threadgroup);

      float highest = -INFINITY, sum = 0.0f, factors[kSimdgroups];
      TMO_UNROLL
      for (int s = 0; s < kSimdgroups; ++s) highest = larger(highest, part_reference[s].x);
      TMO_UNROLL
      for (int s = 0; s < kSimdgroups; ++s) {
        factors[s] = change_of_reference(part_reference[s].x, highest);
        sum += part_reference[s].y * factors[s];
      }
      const Row row = row_of(p, at.kv_head, r);
      const float sink = p.has_sinks != 0 ? sink_of(p, sinks, row.head) : 0.0f;
      device T* to = out + offset_of(p.out, at.batch, row);
      const long partial = first_partial + r * p.splits;
      for (int d = int(thread_index); d < Dv; d += kSdpaDecodeThreads) {
        float x = 0.0f;
        TMO_UNROLL
        for (int s = 0; s < kSimdgroups; ++s) x = fma(part[s * kDv + d], factors[s], x);
        if (p.splits == 1) {
          to[d] = T(finish(p, highest, sum, x, sink));
        } else {
          weighted[partial * Dv + d] = x;
        }
      }
      if (p.splits > 1 && thread_index == 0) references[partial] = float2(highest, sum);
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

// Adds up the partial results of a row. Every simdgroup does the references, each lane for up to kSplitsALane splits.
template <typename T>
[[kernel]] void sdpa_decode_reduce(device const float2* references [[buffer(0)]],
                                   device const float* weighted [[buffer(1)]], device const void* sinks [[buffer(2)]],
                                   device T* out [[buffer(3)]], constant SdpaParams& p [[buffer(4)]],
                                   uint3 group [[threadgroup_position_in_grid]],
                                   ushort thread_index [[thread_index_in_threadgroup]],
                                   ushort lane [[thread_index_in_simdgroup]]) {
  constexpr int kSplitsALane = kSdpaMaxSplits / 32;
  const int batch = int(group.z), kv_head = int(group.y);
  const long partial = partial_of(p, batch, kv_head, int(group.x));
  float2 own[kSplitsALane];
  float highest = -INFINITY;
  TMO_UNROLL
  for (int i = 0; i < kSplitsALane; ++i) {
    const int split = i * 32 + int(lane);
    own[i] = float2(-INFINITY, 0.0f);
    if (split < p.splits) own[i] = references[partial + split];
    highest = larger(highest, own[i].x);
  }
  highest = simd_max(highest);
  float factors[kSplitsALane], sum = 0.0f;
  TMO_UNROLL
  for (int i = 0; i < kSplitsALane; ++i) {
    factors[i] = change_of_reference(own[i].x, highest);
    sum += own[i].y * factors[i];
    // Of a split that saw no key nothing was written. A factor of 0 is another thing: 0 * NaN is NaN.
    if (own[i].x == -INFINITY) factors[i] = -1.0f;
  }
  sum = simd_sum(sum);

  const Row row = row_of(p, kv_head, int(group.x));
  const float sink = p.has_sinks != 0 ? sink_of(p, sinks, row.head) : 0.0f;
  device T* to = out + offset_of(p.out, batch, row);
  for (int block = 0; block < p.Dv; block += kSdpaReduceThreads) {
    const int d = block + int(thread_index);
    float x = 0.0f;
    TMO_UNROLL
    for (int i = 0; i < kSplitsALane; ++i) {
      for (int split = i * 32; split < min(p.splits, i * 32 + 32); ++split) {
        const float factor = simd_broadcast(factors[i], ushort(split - i * 32));
        if (!(factor < 0.0f)) {
          if (d < p.Dv) x = fma(weighted[(partial + split) * p.Dv + d], factor, x);
        }
      }
    }
    if (d < p.Dv) to[d] = T(finish(p, highest, sum, x, sink));
  }
}

// A key of kDk elements goes to as many lanes as leave each about 8 of them.
#define TMO_SDPA_DECODE(tag, type, Dk, Dv, lanes, rows) \
  TMO_INSTANTIATE("sdpa_decode_" #tag "_dk" #Dk "_dv" #Dv, sdpa_decode, type, Dk, Dv, lanes, rows)

#define TMO_SDPA_DECODE_ALL(tag, type)                                                       \
  TMO_SDPA_DECODE(tag, type, 64, 64, 8, 4)                                                   \
  TMO_SDPA_DECODE(tag, type, 80, 80, 8, 4)                                                   \
  TMO_SDPA_DECODE(tag, type, 96, 96, 8, 4)                                                   \
  TMO_SDPA_DECODE(tag, type, 112, 112, 16, 4)                                                \
  TMO_SDPA_DECODE(tag, type, 128, 128, 16, 4)                                                \
  TMO_SDPA_DECODE(tag, type, 192, 192, 16, 4)                                                \
  TMO_SDPA_DECODE(tag, type, 192, 128, 16, 4)                                                \
  TMO_SDPA_DECODE(tag, type, 256, 256, 32, 4)                                                \
  TMO_SDPA_DECODE(tag, type, 576, 512, 32, 2)                                                \
  TMO_INSTANTIATE("sdpa_decode_any_" #tag "_dk256_dv256", sdpa_decode, type, 256, 256, 0, 4) \
  TMO_INSTANTIATE("sdpa_decode_any_" #tag "_dk576_dv512", sdpa_decode, type, 576, 512, 0, 2) \
  TMO_INSTANTIATE("sdpa_decode_reduce_" #tag, sdpa_decode_reduce, type)

TMO_SDPA_DECODE_ALL(f32, float)
TMO_SDPA_DECODE_ALL(f16, half)
TMO_SDPA_DECODE_ALL(bf16, bfloat)
