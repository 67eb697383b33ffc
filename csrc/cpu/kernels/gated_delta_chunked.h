// metal::gated_delta_rule for long T, C steps at once as matrix products. With S0 the state before the chunk, D(i,j)
// the product of the decays of steps j+1..i, and D(i) that of steps 1..i, the recurrence unrolls to
//   d_i = beta_i (v_i - S0 D(i) k_i - sum_{j<i} (k_i . D(i,j) k_j) d_j)
//   y_i = S0 D(i) q_i + sum_{j<=i} (q_i . D(i,j) k_j) d_j
//   S   = S0 D(C) + sum_j d_j (D(C,j) k_j)^T
// d is found by forward substitution. After the UT form of Yang et al. (Parallelizing Linear Transformers with the
// Delta Rule, 2024; Gated Delta Networks, 2024); here the chunks follow each other, so W and U are never formed.
// Method   The D are products of decays, never quotients nor differences of logarithms: exact for g = 0 and g = 1.
//          What depends on keys and queries alone is computed once a chunk; then panels of columns of S0^T, which fit
//          the first-level cache, are taken one by one.
// NaN, inf The sums above mix steps, so a column in which anything is not finite is done again step by step.
#pragma once

#include "gated_delta_recurrent.h"
#include "gemm.h"
#include "transpose.h"

namespace tmo::cpu::TMO_ISA {

constexpr int kStatePanelVectors = kTileVectors == 3 ? 2 : kTileVectors;
constexpr int64_t kStatePanel = kStatePanelVectors * kLanes;
static_assert(kStatePanel <= kGatedDeltaPanel && kGatedDeltaPanel % kStatePanel == 0);

template <bool kAccumulate>
TMO_INLINE void gemm_panel(int64_t M, int64_t K, const float* A, int64_t lda, const float* B, float* C) {
  gemm_columns<kStatePanelVectors, kAccumulate, Layout::rows>(M, K, A, lda, B, kStatePanel, C, kStatePanel);
}

// One chunk of one head. keys and pairs hold the rows of the keys, then those of the queries.
struct Chunk {
  int64_t first, count;  // steps
  int64_t key_stride;
  float* keys;   // [2 count, key_stride]: k and q, then D(i) k_i and D(i) q_i
  float* decay;  // [count, key_stride]: g per channel
  float* kt;     // [Dk, C]: k^T, then (D(count,j) k_j)^T
  float* pairs;  // [2 count, C]: -beta_i k_i . D(i,j) k_j below the diagonal, and q_i . D(i,j) k_j up to it
  float* last;   // [Dk]: D(count)
  float* beta;   // [count]
  float* row;    // [C]
  int64_t value_stride;
  float* values;  // [count, value_stride]: v, then y
  float* panel;   // [2 count, kStatePanel]: d and y
};

constexpr int64_t kChunk = kGatedDeltaChunk;

// -- keys and queries of a chunk

inline void load_chunk(const GatedDeltaParams& p, const GatedDeltaRows& rows, Chunk& chunk) {
  const int64_t b = rows.b, h = rows.h, key_head = h / p.heads_per_key;
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const k = chunk.keys + i * chunk.key_stride;
    load_row(p.k, b, chunk.first + i, key_head, 0, p.Dk, k);
    load_row(p.q, b, chunk.first + i, key_head, 0, p.Dk, chunk.keys + (chunk.count + i) * chunk.key_stride);
    load_row(p.g, b, chunk.first + i, h, 0, p.decay_per_channel ? p.Dk : 1, chunk.decay + i * chunk.key_stride);
    load_row(p.v, b, chunk.first + i, h, rows.begin, rows.end - rows.begin, chunk.values + i * chunk.value_stride);
    chunk.beta[i] = load_one(p.beta, b, chunk.first + i, h);
  }
  transpose(chunk.count, p.Dk, chunk.keys, chunk.key_stride, chunk.kt, kChunk);
}

// Row i of the products with keys: those above the diagonal count as 0.
TMO_INLINE void finish_pairs(const Chunk& chunk, int64_t i) {
  float* const with_key = chunk.pairs + i * kChunk;
  float* const with_query = chunk.pairs + (chunk.count + i) * kChunk;
  for (int64_t j = 0; j < i; ++j) with_key[j] *= -chunk.beta[i];
  for (int64_t j = i; j < kChunk; ++j) with_key[j] = 0;
  for (int64_t j = i + 1; j < kChunk; ++j) with_query[j] = 0;
}

// One decay a step: D(i,j) does not depend on the channel, so the products are products of matrices.
inline void pair_steps(const Chunk& chunk, int64_t Dk) {
  gemm<false>(2 * chunk.count, chunk.count, Dk, chunk.keys, chunk.key_stride, chunk.kt, kChunk, chunk.pairs, kChunk);
  float* const decays = chunk.row;  // D(i, j) of the current i
  for (int64_t j = 0; j < kChunk; ++j) decays[j] = 0;
  float since_start = 1;
  for (int64_t i = 0; i < chunk.count; ++i) {
    const float g = chunk.decay[i * chunk.key_stride];
    since_start *= g;
    for (int64_t j = 0; j < kChunk; j += kLanes) store(decays + j, load(decays + j) * g);
    decays[i] = 1;
    for (int64_t part = 0; part < 2; ++part) {
      float* const pairs = chunk.pairs + (part * chunk.count + i) * kChunk;
      float* const keys = chunk.keys + (part * chunk.count + i) * chunk.key_stride;
      for (int64_t j = 0; j < kChunk; j += kLanes) store(pairs + j, load(pairs + j) * load(decays + j));
      for (int64_t c = 0; c < Dk; c += kLanes) store(keys + c, load(keys + c) * since_start);
    }
    finish_pairs(chunk, i);
  }
  for (int64_t c = 0; c < Dk; ++c) {
    chunk.last[c] = since_start;
    float* const kt = chunk.kt + c * kChunk;
    for (int64_t j = 0; j < kChunk; j += kLanes) store(kt + j, load(kt + j) * load(decays + j));
  }
}

// A decay a channel: k^T is built up and decayed step by step, and each step's row of products is taken from it.
inline void pair_steps_by_channel(const Chunk& chunk, int64_t Dk) {
  for (int64_t c = 0; c < Dk * kChunk; c += kLanes) store(chunk.kt + c, f32v{});
  for (int64_t c = 0; c < Dk; ++c) chunk.last[c] = 1;
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const k = chunk.keys + i * chunk.key_stride;
    float* const q = chunk.keys + (chunk.count + i) * chunk.key_stride;
    const float* const g = chunk.decay + i * chunk.key_stride;
    const int64_t used = padded(i + 1);
    float* const with_key = chunk.pairs + i * kChunk;
    float* const with_query = chunk.pairs + (chunk.count + i) * kChunk;
    for (int64_t j = 0; j < used; j += kLanes) {
      f32v kk{}, qk{};
      for (int64_t c = 0; c < Dk; ++c) {
        float* const kt = chunk.kt + c * kChunk;
        const f32v decayed = load(kt + j) * g[c];
        store(kt + j, decayed);
        if (j + kLanes >= used) kt[i] = k[c];
        const f32v k_j = load(kt + j);
        kk += k[c] * k_j;
        qk += q[c] * k_j;
      }
      store(with_key + j, kk);
      store(with_query + j, qk);
    }
    for (int64_t c = 0; c < Dk; ++c) {
      chunk.last[c] *= g[c];
      k[c] *= chunk.last[c];
      q[c] *= chunk.last[c];
    }
    finish_pairs(chunk, i);
  }
}

// -- one panel of columns of S0^T

// d = beta (v - S0 D(i) k_i), the right side of the system, into the rows of chunk.panel that hold S0 D(i) k_i.
TMO_INLINE void right_side(const Chunk& chunk, const float* v) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* const d = chunk.panel + i * kStatePanel;
#pragma GCC unroll 8
    for (int64_t j = 0; j < kStatePanel; j += kLanes) {
      store(d + j, (load(v + i * chunk.value_stride + j) - load(d + j)) * chunk.beta[i]);
    }
  }
}

// Forward substitution, a tile of rows at a time: what earlier tiles give is a product of matrices.
inline void solve(const Chunk& chunk) {
  float* const d = chunk.panel;
  for (int64_t first = 0; first < chunk.count; first += kTileRows) {
    const int64_t end = first + kTileRows < chunk.count ? first + kTileRows : chunk.count;
    gemm_panel<true>(end - first, first, chunk.pairs + first * kChunk, kChunk, d, d + first * kStatePanel);
    for (int64_t i = first + 1; i < end; ++i) {
      f32v sum[kStatePanelVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kStatePanelVectors; ++v) sum[v] = load(d + i * kStatePanel + v * kLanes);
      for (int64_t j = first; j < i; ++j) {
        const f32v pair = splat(chunk.pairs[i * kChunk + j]);
#pragma GCC unroll 8
        for (int v = 0; v < kStatePanelVectors; ++v) sum[v] += pair * load(d + j * kStatePanel + v * kLanes);
      }
#pragma GCC unroll 8
      for (int v = 0; v < kStatePanelVectors; ++v) store(d + i * kStatePanel + v * kLanes, sum[v]);
    }
  }
}

inline void add_outputs(const Chunk& chunk) {
  const float* const pairs = chunk.pairs + chunk.count * kChunk;
  float* const y = chunk.panel + chunk.count * kStatePanel;
  for (int64_t first = 0; first < chunk.count; first += kTileRows) {
    const int64_t end = first + kTileRows < chunk.count ? first + kTileRows : chunk.count;
    gemm_panel<true>(end - first, end, pairs + first * kChunk, kChunk, chunk.panel, y + first * kStatePanel);
  }
}

// For each column: 0 if all of d and y is finite, else NaN.
TMO_INLINE void find_not_finite(const Chunk& chunk, float* zero_or_nan) {
#pragma GCC unroll 8
  for (int v = 0; v < kStatePanelVectors; ++v) {
    f32v seen{};
    for (int64_t i = 0; i < 2 * chunk.count; ++i) seen += load(chunk.panel + i * kStatePanel + v * kLanes) * 0.0f;
    store(zero_or_nan + v * kLanes, seen);
  }
}

// Columns of a chunk in which something is not finite, step by step from the state before it.
inline void redo_columns(const GatedDeltaParams& p, const GatedDeltaRows& columns, const Chunk& chunk,
                         const float* zero_or_nan, const float* before, float* state, float* scratch) {
  Steps steps;
  float* const row = place(steps, scratch, chunk.count, p.Dk, columns.end - columns.begin);
  load_steps(p, columns, chunk.first, steps);
  for (int64_t j = 0; j < columns.end - columns.begin; ++j) {
    if (zero_or_nan[j] == 0) continue;
    for (int64_t c = 0; c < steps.key_stride; ++c) row[c] = c < p.Dk ? before[c * kStatePanel + j] : 0;
    all_steps<1>(p, steps, j, row, steps.key_stride);
    for (int64_t c = 0; c < p.Dk; ++c) state[c * kStatePanel + j] = row[c];
    for (int64_t i = 0; i < chunk.count; ++i) {
      chunk.panel[(chunk.count + i) * kStatePanel + j] = steps.y[i * steps.value_stride + j];
    }
  }
}

inline void chunk_panel(const GatedDeltaParams& p, const GatedDeltaRows& columns, const Chunk& chunk, float* values,
                        float* state, float* before, float* scratch) {
  gemm_panel<false>(2 * chunk.count, p.Dk, chunk.keys, chunk.key_stride, state, chunk.panel);
  right_side(chunk, values);
  solve(chunk);
  add_outputs(chunk);
  float zero_or_nan[kStatePanel], any = 0;
  find_not_finite(chunk, zero_or_nan);
  for (int64_t j = 0; j < columns.end - columns.begin; ++j) any += zero_or_nan[j];
  if (any != 0) std::memcpy(before, state, p.Dk * kStatePanel * sizeof(float));
  for (int64_t c = 0; c < p.Dk; ++c) {
#pragma GCC unroll 8
    for (int64_t j = 0; j < kStatePanel; j += kLanes) {
      store(state + c * kStatePanel + j, load(state + c * kStatePanel + j) * chunk.last[c]);
    }
  }
  gemm_panel<true>(p.Dk, chunk.count, chunk.kt, kChunk, chunk.panel, state);
  if (any != 0) redo_columns(p, columns, chunk, zero_or_nan, before, state, scratch);
  for (int64_t i = 0; i < chunk.count; ++i) {
    const float* const y = chunk.panel + (chunk.count + i) * kStatePanel;
#pragma GCC unroll 8
    for (int64_t j = 0; j < kStatePanel; j += kLanes) store(values + i * chunk.value_stride + j, load(y + j));
  }
}

inline void store_outputs(const GatedDeltaParams& p, const GatedDeltaRows& rows, const Chunk& chunk) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    store_row(p.y, rows.b, chunk.first + i, rows.h, rows.begin, rows.end - rows.begin,
              chunk.values + i * chunk.value_stride);
  }
}

// -- the state as panels of S^T: [panels, Dk, kStatePanel]. some_rows has room for kStatePanel rows.

inline void load_state(const GatedDeltaParams& p, const GatedDeltaRows& rows, float* panels, float* some_rows) {
  const int64_t stride = gated_delta_padded(p.Dk);
  for (int64_t first = rows.begin; first < rows.end; first += kStatePanel, panels += p.Dk * kStatePanel) {
    for (int64_t r = 0; r < kStatePanel; ++r) {
      float* const row = some_rows + r * stride;
      const bool is_row = first + r < rows.end;
      if (is_row) load_row(p.state, rows.b, rows.h, first + r, 0, p.Dk, row);
      for (int64_t c = 0; !is_row && c < stride; ++c) row[c] = 0;
    }
    transpose(kStatePanel, p.Dk, some_rows, stride, panels, kStatePanel);
  }
}

// An element that differs from the old one in the sign of zero only is kept: steps with beta = 0 and g = 1 leave the
// state alone.
inline void store_state(const GatedDeltaParams& p, const GatedDeltaRows& rows, const float* panels, float* some_rows) {
  const int64_t stride = gated_delta_padded(p.Dk);
  float old[gated_delta_padded(kGatedDeltaMaxDk)];
  for (int64_t first = rows.begin; first < rows.end; first += kStatePanel, panels += p.Dk * kStatePanel) {
    transpose(p.Dk, kStatePanel, panels, kStatePanel, some_rows, stride);
    for (int64_t r = 0; r < kStatePanel && first + r < rows.end; ++r) {
      float* const row = some_rows + r * stride;
      load_row(p.state, rows.b, rows.h, first + r, 0, p.Dk, old);
      for (int64_t c = 0; c < p.Dk; c += kLanes) {
        const f32v was = load(old + c), now = load(row + c);
        store(row + c, select(was == now, was, now));
      }
      store_row(p.state, rows.b, rows.h, first + r, 0, p.Dk, row);
    }
  }
}

inline void gated_delta_chunked(const GatedDeltaParams& p, const GatedDeltaRows& rows, float* scratch) {
  Chunk chunk;
  chunk.key_stride = gated_delta_padded(p.Dk);
  chunk.keys = scratch;
  chunk.decay = chunk.keys + 2 * kChunk * chunk.key_stride;
  chunk.kt = chunk.decay + kChunk * chunk.key_stride;
  chunk.pairs = chunk.kt + p.Dk * kChunk;
  chunk.last = chunk.pairs + 2 * kChunk * kChunk;
  chunk.beta = chunk.last + chunk.key_stride;
  chunk.row = chunk.beta + kChunk;
  const int64_t columns = (rows.end - rows.begin + kStatePanel - 1) / kStatePanel * kStatePanel;
  chunk.value_stride = columns + 16;  // a power of 2 would put all rows into the same sets of the cache
  chunk.values = chunk.row + kChunk;
  chunk.panel = chunk.values + kChunk * chunk.value_stride;
  float* const before = chunk.panel + 2 * kChunk * kStatePanel;
  float* const state = before + p.Dk * kStatePanel;
  float* const rest = state + p.Dk * columns;

  load_state(p, rows, state, rest);
  for (int64_t i = 0; i < kChunk * chunk.value_stride; ++i) chunk.values[i] = 0;  // columns that pad the last panel
  for (chunk.first = 0; chunk.first < p.T; chunk.first += kChunk) {
    chunk.count = p.T - chunk.first < kChunk ? p.T - chunk.first : kChunk;
    load_chunk(p, rows, chunk);
    if (p.decay_per_channel) {
      pair_steps_by_channel(chunk, p.Dk);
    } else {
      pair_steps(chunk, p.Dk);
    }
    for (int64_t first = rows.begin; first < rows.end; first += kStatePanel) {
      const int64_t end = first + kStatePanel < rows.end ? first + kStatePanel : rows.end;
      chunk_panel(p, {rows.b, rows.h, first, end}, chunk, chunk.values + first - rows.begin,
                  state + (first - rows.begin) * p.Dk, before, rest);
    }
    store_outputs(p, rows, chunk);
  }
  store_state(p, rows, state, rest);
}

}  // namespace tmo::cpu::TMO_ISA
