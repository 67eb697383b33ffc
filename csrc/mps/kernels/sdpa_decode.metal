// Attention of a few query rows: bound by the reading of keys and values.
//   out = softmax(scale query key^T) value
// Shapes   query [B, Hq, Lq, Dk], key [B, Hkv, Lk, Dk], value [B, Hkv, Lk, Dv], out [B, Hq, Lq, Dv]; any strides but
//          the last. A row is a query of one head; those of the heads that share a key head are neighbours.
// Grid     sdpa_decode: threadgroups (splits, Hkv * tiles of kRows rows, B) of 128 threads; sdpa_decode_reduce, if
// there
//          is more than one split: (rows, Hkv, B) of 128 threads
// Method   The keys that some row of the tile sees are divided evenly over the splits: how many are in use is known on
//          the device only. kLanes lanes share a key and its value, which are loaded once for all rows of the tile;
//          what a product takes is log2(kLanes) shuffles for 32 / kLanes keys. Each group of lanes has a softmax of its
//          own over its keys, all are merged at the end, so that the loop has no barrier. The reference of the weights
//          moves only when a score exceeds it by so much that float32 might not do; that is rare.
// Sources  splits: Flash-Decoding (Dao et al., 2023); a key on a few lanes: the fp32 matrix-vector kernels of llama.cpp
//          and MLX (MIT) do so for weights
#include <metal_stdlib>

#include "common/instantiate.h"
#include "sdpa_decode.h"

using namespace metal;

static constant constexpr int kSimdgroups = 4;
static constant constexpr float kReach = 5.5f;  // how far a score may exceed the reference: e^5.5 = 245

// kLanes 0: any head sizes up to kDk and kDv, any alignment.
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
  constexpr int kKeyRun = run_of<T>(kDk, kLanes), kKeyShare = share_of(kDk, kLanes, kKeyRun);
  constexpr int kValueRun = run_of<T>(kDv, kLanes), kValueShare = share_of(kDv, kLanes, kValueRun);
  constexpr bool kWholeKey = kKeyShare * kLanes == kDk, kWholeValue = kValueShare * kLanes == kDv;

  threadgroup float part[kSimdgroups * kDv];
  threadgroup float2 part_reference[kSimdgroups];

  const int lanes = kLanes == 0 ? p.lanes : kLanes;
  const int Dk = kLanes == 0 ? p.Dk : kDk, Dv = kLanes == 0 ? p.Dv : kDv;
  const int lane = int(lane_index) % lanes, stream = int(lane_index) / lanes, streams = 32 / lanes;
  const int tiles = (p.Lq * p.group + kRows - 1) / kRows;
  const int batch = int(group.z), kv_head = int(group.y) / tiles, first_row = int(group.y) % tiles * kRows;
  const int rows = min(kRows, p.Lq * p.group - first_row);

  // This split's share of the keys that some row sees.
  const int used = used_keys(p, seqused, batch);
  const KeyRange first_range = keys_of_query(p, used, first_row / p.group);
  const KeyRange last_range = keys_of_query(p, used, (first_row + rows - 1) / p.group);
  const int count = last_range.end - first_range.begin;
  const int share = ((count + p.splits - 1) / p.splits + 31) & ~31;
  const int begin = first_range.begin + int(min(long(group.x) * share, long(count)));
  const int end = min(begin + share, last_range.end);
  if (p.splits > 1 && begin >= end) {
    if (int(thread_index) < rows) {
      references[partial_of(p, batch, kv_head, first_row + int(thread_index)) + group.x] = float2(-INFINITY, 0.0f);
    }
    return;
  }
  // Whether any row sees less than all of these keys.
  const bool hides = p.has_mask != 0 || last_range.begin > begin || first_range.end < end;

  float q[kRows][kKeyShare];
  int begin_of[kRows], end_of[kRows];
  long mask_of[kRows];
  float reference[kRows], sum[kRows], o[kRows][kValueShare];
#pragma clang loop unroll(full)
  for (int r = 0; r < kRows; ++r) {
    const Row row = row_of(p, kv_head, first_row + min(r, rows - 1));
    load_part<T, kKeyShare, kKeyRun, kWholeKey>(q[r], query + offset_of(p.query, batch, row), lane, lanes, Dk);
    const KeyRange range = keys_of_query(p, used, row.query);
    begin_of[r] = range.begin;
    end_of[r] = range.end;
    mask_of[r] = mask_row(p, batch, row.head, row.query);
    reference[r] = -FLT_MAX;
    sum[r] = 0.0f;
#pragma clang loop unroll(full)
    for (int i = 0; i < kKeyShare; ++i) q[r][i] *= p.scale;
#pragma clang loop unroll(full)
    for (int i = 0; i < kValueShare; ++i) o[r][i] = 0.0f;
  }
  key += long(batch) * p.key.batch + long(kv_head) * p.key.head;
  value += long(batch) * p.value.batch + long(kv_head) * p.value.head;

  uint seen = 0;  // a bit a row
  for (int base = begin + int(simdgroup) * streams; base < end; base += kSimdgroups * streams) {
    const int j = base + stream;
    float bias[kRows];
    bool wanted = j < end;
    if (hides) {
      const bool inside = wanted;
      wanted = false;
#pragma clang loop unroll(full)
      for (int r = 0; r < kRows; ++r) {
        bias[r] = -INFINITY;
        if (r < rows && inside && begin_of[r] <= j && j < end_of[r]) {
          bias[r] = p.has_mask != 0 ? mask_at(p, mask, mask_of[r] + long(j) * p.mask_key) : 0.0f;
        }
        const bool sees = bias[r] != -INFINITY;
        seen |= sees ? 1u << r : 0u;
        wanted = wanted || sees;
      }
    } else {
#pragma clang loop unroll(full)
      for (int r = 0; r < kRows; ++r) bias[r] = wanted ? 0.0f : -INFINITY;
      seen = wanted ? ~0u : seen;
    }

    // A key that no row sees is not read: what lies there, NaN even, counts for nothing.
    float k[kKeyShare], v[kValueShare];
    if (wanted) {
      load_part<T, kKeyShare, kKeyRun, kWholeKey>(k, key + long(j) * p.key.row, lane, lanes, Dk);
      load_part<T, kValueShare, kValueRun, kWholeValue>(v, value + long(j) * p.value.row, lane, lanes, Dv);
    } else {
#pragma clang loop unroll(full)
      for (int i = 0; i < kKeyShare; ++i) k[i] = 0.0f;
#pragma clang loop unroll(full)
      for (int i = 0; i < kValueShare; ++i) v[i] = 0.0f;
    }

    float score[kRows];
    bool exceeds = false;
#pragma clang loop unroll(full)
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) {
        float product = 0.0f;
#pragma clang loop unroll(full)
        for (int i = 0; i < kKeyShare; ++i) product = fma(q[r][i], k[i], product);
        score[r] = final_score(p, sum_of_lanes(product, lanes), bias[r]);
        exceeds = exceeds || score[r] > reference[r] + kReach;
      }
    }
    if (simd_any(exceeds)) {
#pragma clang loop unroll(full)
      for (int r = 0; r < kRows; ++r) {
        if (r < rows) {
          const float now = larger(score[r], reference[r]);
          const float factor = weight_of(reference[r] - now);
          reference[r] = now;
          sum[r] *= factor;
#pragma clang loop unroll(full)
          for (int i = 0; i < kValueShare; ++i) o[r][i] *= factor;
        }
      }
    }
#pragma clang loop unroll(full)
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) {
        const float weight = bias[r] == -INFINITY ? 0.0f : weight_of(score[r] - reference[r]);
        sum[r] += weight;
#pragma clang loop unroll(full)
        for (int i = 0; i < kValueShare; ++i) o[r][i] = fma(weight, v[i], o[r][i]);
      }
    }
  }

  // The streams of a simdgroup, then the simdgroups.
#pragma clang loop unroll(full)
  for (int r = 0; r < kRows; ++r) {
    if (r < rows) {
      const float own = ((seen >> r) & 1u) != 0 ? reference[r] : -INFINITY;
      const float top = largest_of_rows(own, lanes);
      const float factor = change_of_reference(own, top);
      const float total = sum_of_rows(sum[r] * factor, lanes);
#pragma clang loop unroll(full)
      for (int i = 0; i < kValueShare; ++i) {
        const float x = sum_of_rows(o[r][i] * factor, lanes);
        const int d = place_of<kValueRun>(i, lane, lanes);
        if (stream == 0 && (kWholeValue || d < Dv)) part[int(simdgroup) * kDv + d] = x;
      }
      if (lane_index == 0) part_reference[simdgroup] = float2(top, total);
      threadgroup_barrier(mem_flags::mem_threadgroup);

      float highest = -INFINITY, all = 0.0f, factors[kSimdgroups];
#pragma clang loop unroll(full)
      for (int s = 0; s < kSimdgroups; ++s) highest = larger(highest, part_reference[s].x);
#pragma clang loop unroll(full)
      for (int s = 0; s < kSimdgroups; ++s) {
        factors[s] = change_of_reference(part_reference[s].x, highest);
        all += part_reference[s].y * factors[s];
      }
      const Row row = row_of(p, kv_head, first_row + r);
      const float sink = p.has_sinks != 0 ? sink_of(p, sinks, row.head) : 0.0f;
      device T* to = out + offset_of(p.out, batch, row);
      const long partial = partial_of(p, batch, kv_head, first_row + r) + group.x;
      for (int d = int(thread_index); d < Dv; d += kSimdgroups * 32) {
        float x = 0.0f;
#pragma clang loop unroll(full)
        for (int s = 0; s < kSimdgroups; ++s) x = fma(part[s * kDv + d], factors[s], x);
        if (p.splits == 1) {
          to[d] = T(finish(p, highest, all, x, sink));
        } else {
          weighted[partial * Dv + d] = x;
        }
      }
      if (p.splits > 1 && thread_index == 0) references[partial] = float2(highest, all);
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
#pragma clang loop unroll(full)
  for (int i = 0; i < kSplitsALane; ++i) {
    const int split = i * 32 + int(lane);
    own[i] = float2(-INFINITY, 0.0f);
    if (split < p.splits) own[i] = references[partial + split];
    highest = larger(highest, own[i].x);
  }
  highest = simd_max(highest);
  float factors[kSplitsALane], sum = 0.0f;
#pragma clang loop unroll(full)
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
  for (int block = 0; block < p.Dv; block += kSimdgroups * 32) {
    const int d = block + int(thread_index);
    float x = 0.0f;
#pragma clang loop unroll(full)
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
