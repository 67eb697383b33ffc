// metal::sdpa: the rules of its arguments and the layout of its output, for every backend.
#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "../core/check.h"

namespace tmo {

constexpr int64_t kSdpaMaxDk = 576;
constexpr int64_t kSdpaMaxDv = 512;

template <class Int>
struct SdpaShape {
  bool batched;  // 4-D arguments; 3-D ones are read as a batch of one
  Int B, Hq, Hkv, Lq, Lk, Dk, Dv;
};

// Everything but the tensors: the same on every backend.
template <class Int>
struct SdpaOptions {
  double dropout_p = 0.0;
  bool is_causal = false;
  std::optional<double> scale = std::nullopt;
  bool enable_gqa = false;
  std::optional<Int> sliding_window = std::nullopt;
  double softcap = 0.0;
};

struct SdpaTensors {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const std::optional<at::Tensor>& attn_mask;
  const std::optional<at::Tensor>& seqused_k;
  const std::optional<at::Tensor>& sinks;
};

namespace sdpa_detail {

inline void check_dtypes(const SdpaTensors& t) {
  check_float("sdpa", {"query", t.query});
  check_same_dtype("sdpa", {"query", t.query}, {"key", t.key});
  check_same_dtype("sdpa", {"query", t.query}, {"value", t.value});
  if (t.attn_mask) {
    const at::ScalarType dtype = t.attn_mask->scalar_type();
    TMO_CHECK(dtype == at::kBool || is_float(dtype), "sdpa: attn_mask must be bool, float32, float16 or bfloat16, got ",
              dtype, ". Convert it with .to(torch.bool), where True means attend.");
  }
  if (t.seqused_k) check_index("sdpa", {"seqused_k", *t.seqused_k});
  if (t.sinks) check_float("sdpa", {"sinks", *t.sinks});
  const at::Tensor mask = value_or_undefined(t.attn_mask), used = value_or_undefined(t.seqused_k);
  const at::Tensor sinks = value_or_undefined(t.sinks);
  check_same_device("sdpa", {"query", t.query},
                    {{"key", t.key}, {"value", t.value}, {"attn_mask", mask}, {"seqused_k", used}, {"sinks", sinks}});
}

template <class Int>
SdpaShape<Int> check_sizes(const SdpaTensors& t, bool enable_gqa) {
  const auto q = sizes_of<Int>(t.query), k = sizes_of<Int>(t.key), v = sizes_of<Int>(t.value);
  TMO_CHECK((q.size() == 3 || q.size() == 4) && k.size() == q.size() && v.size() == q.size(),
            "sdpa: query, key and value must all be [B, H, L, D] or all [H, L, D], got shapes ", q, ", ", k, " and ", v,
            ". Flatten further batch dimensions into one.");
  const bool batched = q.size() == 4;
  const size_t h = batched ? 1 : 0;
  SdpaShape<Int> s{batched, Int(1), q[h], k[h], q[h + 1], k[h + 1], q[h + 2], v[h + 2]};
  TMO_CHECK(eq(k[h + 2], s.Dk), "sdpa: query and key must have one head size, got ", s.Dk, " and ", k[h + 2],
            ". Check the last dimension of both.");
  TMO_CHECK(both(le(Int(1), s.Dk), le(s.Dk, Int(kSdpaMaxDk))), "sdpa: Dk must be from 1 to ", kSdpaMaxDk, ", got ",
            s.Dk, ". Split larger heads.");
  TMO_CHECK(both(le(Int(1), s.Dv), le(s.Dv, Int(kSdpaMaxDv))), "sdpa: Dv must be from 1 to ", kSdpaMaxDv, ", got ",
            s.Dv, ". Split a larger value along its last dimension.");
  TMO_CHECK(eq(v[h], s.Hkv), "sdpa: key and value must have the same number of heads, got ", s.Hkv, " and ", v[h],
            ". Expand the one with fewer.");
  TMO_CHECK(eq(v[h + 1], s.Lk), "sdpa: key and value must have the same length, got ", s.Lk, " and ", v[h + 1],
            ". Slice the longer one.");
  if (!known(eq(s.Hq, s.Hkv))) {
    TMO_CHECK(enable_gqa, "sdpa: query and key must have the same number of heads unless enable_gqa=True, got ", s.Hq,
              " and ", s.Hkv, ". Pass enable_gqa=True.");
    TMO_CHECK(le(Int(1), s.Hkv), "sdpa: key must have at least one head when query has any, got ", s.Hkv, " for ", s.Hq,
              ". Check the head dimension.");
    TMO_CHECK(eq(s.Hq % s.Hkv, Int(0)), "sdpa: the heads of query must be a multiple of the heads of key, got ", s.Hq,
              " and ", s.Hkv, ". Check the head dimension.");
  }
  if (batched) {
    s.B = broadcast_size(broadcast_size(q[0], k[0]), v[0]);
    for (const auto& sizes : {q, k, v}) {
      TMO_CHECK(either(eq(sizes[0], s.B), eq(sizes[0], Int(1))),
                "sdpa: the batch sizes of query, key and value must be equal or 1, got ", q[0], ", ", k[0], " and ",
                v[0], ". Expand or slice one of them.");
    }
  }
  return s;
}

template <class Int>
void check_mask(const at::Tensor& mask, const SdpaShape<Int>& s) {
  const std::array<Int, 4> full{s.B, s.Hq, s.Lq, s.Lk};
  const auto target = c10::ArrayRef<Int>(full).slice(s.batched ? 0 : 1);
  const auto sizes = sizes_of<Int>(mask);
  const char* rule = s.batched ? "[B, Hq, Lq, Lk]" : "[Hq, Lq, Lk]";
  bool fits = sizes.size() <= target.size();
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    const Int& size = sizes[sizes.size() - 1 - i];
    fits = holds(either(eq(size, target[target.size() - 1 - i]), eq(size, Int(1))));
  }
  TMO_CHECK(fits, "sdpa: attn_mask must broadcast to ", rule, " = ", target, ", got shape ", sizes,
            ". Add or expand dimensions.");
}

template <class Int>
void check_options(const SdpaOptions<Int>& options) {
  TMO_CHECK(
      !options.sliding_window || options.is_causal,
      "sdpa: sliding_window needs is_causal=True, got is_causal=False. Pass is_causal=True, or a mask for a window "
      "that looks ahead.");
  if (options.sliding_window) {
    TMO_CHECK(le(Int(1), *options.sliding_window), "sdpa: sliding_window must be at least 1, got ",
              *options.sliding_window, ". Pass None for no window.");
  }
  TMO_CHECK(options.softcap >= 0 && options.softcap < std::numeric_limits<double>::infinity(),
            "sdpa: softcap must be a finite number >= 0, got ", options.softcap, ". Pass 0.0 for no cap.");
}

}  // namespace sdpa_detail

template <class Int>
SdpaShape<Int> check_sdpa(const SdpaTensors& t, const SdpaOptions<Int>& options) {
  sdpa_detail::check_dtypes(t);
  const SdpaShape<Int> s = sdpa_detail::check_sizes<Int>(t, options.enable_gqa);
  if (t.attn_mask) sdpa_detail::check_mask(*t.attn_mask, s);
  if (t.seqused_k) {
    const auto sizes = sizes_of<Int>(*t.seqused_k);
    TMO_CHECK(sizes.size() == 1 && holds(eq(sizes[0], s.B)), "sdpa: seqused_k must be [B] = [", s.B, "], got shape ",
              sizes, ". Give one length a batch.");
  }
  if (t.sinks) {
    const auto sizes = sizes_of<Int>(*t.sinks);
    TMO_CHECK(sizes.size() == 1 && holds(eq(sizes[0], s.Hq)), "sdpa: sinks must be [Hq] = [", s.Hq, "], got shape ",
              sizes, ". Give one logit a query head.");
  }
  sdpa_detail::check_options(options);
  TORCH_CHECK_NOT_IMPLEMENTED(options.dropout_p == 0.0, "sdpa: dropout_p must be 0.0, got ", options.dropout_p,
                              ". Apply dropout outside; these kernels are for inference.");
  return s;
}

// Whether a dimension of stride a lies outside one of stride b in memory; a stride of 0 says nothing.
template <class Int>
bool is_outside(const Int& a, const Int& b) {
  return known(le(Int(1), b)) && known(le(b + 1, a));
}

template <class Int>
struct SdpaOutput {
  c10::SmallVector<Int, 4> sizes, strides;
};

// [B, Hq, Lq, Dv] with the batch, head and length dimensions in the order in which query has them in memory, so that
// the usual transpose and reshape after attention need no copy. A dimension of stride 0 keeps its place.
template <class Int>
SdpaOutput<Int> sdpa_output(const at::Tensor& query, const SdpaShape<Int>& s) {
  SdpaOutput<Int> out;
  if (s.batched) out.sizes.push_back(s.B);
  for (const Int& size : {s.Hq, s.Lq, s.Dv}) out.sizes.push_back(size);
  const size_t outer = out.sizes.size() - 1;
  const auto strides = strides_of<Int>(query);
  c10::SmallVector<size_t, 3> order;  // outermost first
  for (size_t d = 0; d < outer; ++d) {
    size_t place = order.size();
    while (place > 0 && is_outside(strides[d], strides[order[place - 1]])) --place;
    order.insert(order.begin() + place, d);
  }
  out.strides.resize(outer + 1, Int(1));
  Int step = s.Dv;
  for (size_t i = outer; i-- > 0;) {
    out.strides[order[i]] = step;
    // As torch does, a size of 0 counts as 1.
    step = step * (known(eq(out.sizes[order[i]], Int(0))) ? Int(1) : out.sizes[order[i]]);
  }
  return out;
}

}  // namespace tmo
