// metal::sdpa on the CPU: describes the tensors to the kernels and divides the call into units of work.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>

#include <atomic>
#include <cmath>
#include <vector>

#include "../core/kernels.h"
#include "../ops/sdpa.h"
#include "dispatch.h"
#include "dtype.h"

namespace tmo::cpu {
namespace {

constexpr int64_t kDecodeChunk = 512;    // keys a unit of work when there are few rows
constexpr int64_t kPrefillChunk = 2048;  // and when there are many, but too few units
constexpr int64_t kEnoughItems = 64;  // to occupy the threads of any machine; not their number: results must not vary
constexpr int64_t kSerialWork = 1 << 18;  // multiplications that are done before another thread has woken up

using Optional = std::optional<at::Tensor>;

at::Tensor four_dimensional(const at::Tensor& tensor) { return tensor.dim() == 4 ? tensor : tensor.unsqueeze(0); }

// The kernels want the last dimension contiguous. Keys that are not in use are not read for that either.
at::Tensor readable(const at::Tensor& tensor, int64_t rows) {
  const at::Tensor four = four_dimensional(tensor);
  if (four.size(3) == 1 || four.stride(3) == 1) return four;
  return four.narrow(2, 0, rows).contiguous();
}

SdpaStrides strides_of(const at::Tensor& tensor) {
  return {tensor.size(0) == 1 ? 0 : tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

// The number of keys in use, a batch.
at::Tensor used_keys(const Optional& seqused_k, const SdpaShape<int64_t>& s) {
  if (!seqused_k) return at::full({s.B}, s.Lk, at::kLong);
  return seqused_k->to(at::kLong).clamp(0, s.Lk).contiguous();
}

void describe_mask(SdpaParams& p, const Optional& mask, const SdpaShape<int64_t>& s) {
  p.has_mask = mask.has_value();
  if (!mask) return;
  p.mask_dtype = dtype_of(*mask);
  const at::Tensor full = mask->expand({s.B, s.Hq, s.Lq, s.Lk});
  p.mask = full.const_data_ptr();
  p.mask_strides = {full.stride(0), full.stride(1), full.stride(2)};
  p.mask_key_stride = full.stride(3);
}

// How a call is divided: rows of a key head into tiles, keys into chunks. It depends on sizes only.
struct Division {
  int64_t rows, tile, tiles, chunk, chunks;

  int64_t items() const { return tiles * chunks; }
};

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

Division divide(const SdpaShape<int64_t>& s, int64_t group, int64_t keys) {
  Division d;
  d.rows = s.Lq * group;
  const int64_t tiles = divide_up(d.rows, kSdpaTileRows);
  d.tile = d.rows <= kSdpaDecodeRows ? d.rows : std::min(kSdpaTileRows, sdpa_padded(divide_up(d.rows, tiles)));
  d.tiles = divide_up(d.rows, d.tile);
  const bool few = d.tiles * s.B * s.Hkv < kEnoughItems;
  d.chunk = d.rows <= kSdpaDecodeRows ? kDecodeChunk : few ? kPrefillChunk : std::max<int64_t>(keys, 1);
  d.chunks = std::max<int64_t>(divide_up(keys, d.chunk), 1);
  return d;
}

// The units of a call, numbered so that those with the most visible keys (the last rows, if causal) come first.
struct Items {
  const SdpaShape<int64_t>& s;
  const Division& d;
  float* partials;
  int64_t partial_row;

  int64_t count() const { return s.B * s.Hkv * d.items(); }
  int64_t chunk_stride() const { return d.tile * partial_row; }

  SdpaItem operator[](int64_t number) const {
    const int64_t chunk = number % d.chunks, rest = number / d.chunks;
    const int64_t pair = rest % (s.B * s.Hkv), tile = d.tiles - 1 - rest / (s.B * s.Hkv);
    float* partial = d.chunks == 1 ? nullptr : partials + number * chunk_stride();
    return {pair / s.Hkv,    pair % s.Hkv,          tile * d.tile, std::min(d.rows, (tile + 1) * d.tile),
            chunk * d.chunk, (chunk + 1) * d.chunk, partial};
  }
};

// Calls work(number, scratch) for each number below count, each thread taking the next one when it has finished one.
template <class Work>
void for_each_item(int64_t count, bool parallel, int64_t scratch_floats, const Work& work) {
  std::atomic<int64_t> next{0};
  const int64_t threads = parallel ? std::min<int64_t>(at::get_num_threads(), count) : 1;
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const at::Tensor scratch = at::detail::empty_cpu({scratch_floats}, at::kFloat);
    for (int64_t number; (number = next.fetch_add(1)) < count;) work(number, scratch.data_ptr<float>());
  });
}

void run(const SdpaParams& p, const SdpaShape<int64_t>& s, int64_t keys, Dtype dtype) {
  const Division division = divide(s, p.group, keys);
  Items items{s, division, nullptr, sdpa_partial_row(p)};
  at::Tensor partials;
  if (division.chunks > 1) {
    partials = at::detail::empty_cpu({items.count() * items.chunk_stride()}, at::kFloat);
    items.partials = partials.data_ptr<float>();
  }
  const bool parallel = s.B * s.Hq * s.Lq * keys * (s.Dk + s.Dv) > kSerialWork;
  const int64_t scratch = sdpa_scratch(p);
  for_each_item(items.count(), parallel, scratch,
                [&](int64_t number, float* memory) { kernels().sdpa[size_t(dtype)](p, items[number], memory); });
  if (division.chunks == 1) return;
  for_each_item(items.count() / division.chunks, parallel, scratch, [&](int64_t number, float* memory) {
    kernels().sdpa_merge[size_t(dtype)](p, items[number * division.chunks], division.chunks, items.chunk_stride(),
                                        memory);
  });
}

}  // namespace

at::Tensor sdpa(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& attn_mask, double dropout_p, bool is_causal,
                std::optional<double> scale, bool enable_gqa, const std::optional<at::Tensor>& seqused_k,
                std::optional<int64_t> sliding_window, double softcap, const std::optional<at::Tensor>& sinks) {
  const auto s = check_sdpa<int64_t>({query, key, value, attn_mask, seqused_k, sinks},
                                     {dropout_p, is_causal, scale, enable_gqa, sliding_window, softcap});
  const auto layout = sdpa_output(query, s);
  const at::Tensor out = at::empty_strided(layout.sizes, layout.strides, query.options());
  if (out.numel() == 0) return out;

  const at::Tensor used = used_keys(seqused_k, s);
  const int64_t* used_data = used.const_data_ptr<int64_t>();
  const int64_t keys = *std::max_element(used_data, used_data + s.B);
  const at::Tensor q = readable(query, s.Lq), k = readable(key, keys), v = readable(value, keys);
  const at::Tensor sink_logits = sinks ? sinks->to(at::kFloat).contiguous() : at::Tensor();

  SdpaParams p{};
  p.query = q.const_data_ptr();
  p.key = k.const_data_ptr();
  p.value = v.const_data_ptr();
  const at::Tensor out_4d = four_dimensional(out);
  p.out = out_4d.data_ptr();
  p.query_strides = strides_of(q);
  p.key_strides = strides_of(k);
  p.value_strides = strides_of(v);
  p.out_strides = strides_of(out_4d);
  describe_mask(p, attn_mask, s);
  p.sinks = sinks ? sink_logits.const_data_ptr<float>() : nullptr;
  p.used = used_data;
  p.group = s.Hq / s.Hkv;
  p.Lq = s.Lq;
  p.Dk = s.Dk;
  p.Dv = s.Dv;
  p.is_causal = is_causal;
  p.lower_right = seqused_k.has_value();
  // A window beyond all keys is none; it could not be added to a position without overflow.
  p.window = sliding_window && *sliding_window < s.Lq + s.Lk ? *sliding_window : 0;
  p.scale = static_cast<float>(scale ? *scale : 1.0 / std::sqrt(static_cast<double>(s.Dk)));
  p.softcap = static_cast<float>(softcap);
  run(p, s, keys, dtype_of(q));
  return out;
}

}  // namespace tmo::cpu
