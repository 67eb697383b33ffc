// metal::gated_delta_rule: the rules of its arguments, for every backend.
#pragma once

#include <array>

#include "../core/check.h"
#include "../core/overlap.h"

namespace tmo {

constexpr int64_t kGatedDeltaMaxD = 256;

template <class Int>
struct GatedDeltaShape {
  bool decay_per_channel;  // g is [B, T, Hv, Dk]
  Int B, T, Hk, Hv, Dk, Dv;
};

struct GatedDeltaTensors {
  const at::Tensor& q;
  const at::Tensor& k;
  const at::Tensor& v;
  const at::Tensor& g;
  const at::Tensor& beta;
  const at::Tensor& state;
};

namespace gated_delta_detail {

inline void check_dtypes(const GatedDeltaTensors& t) {
  check_float("gated_delta_rule", {"q", t.q});
  check_same_dtype("gated_delta_rule", {"q", t.q}, {"k", t.k});
  check_same_dtype("gated_delta_rule", {"q", t.q}, {"v", t.v});
  check_float("gated_delta_rule", {"g", t.g});
  check_float("gated_delta_rule", {"beta", t.beta});
  check_float("gated_delta_rule", {"state", t.state});
  check_same_device("gated_delta_rule", {"q", t.q},
                    {{"k", t.k}, {"v", t.v}, {"g", t.g}, {"beta", t.beta}, {"state", t.state}});
}

template <class Int, size_t N>
bool has_sizes(c10::ArrayRef<Int> got, const std::array<Int, N>& want) {
  bool same = got.size() == N;
  for (size_t d = 0; same && d < N; ++d) same = holds(eq(got[d], want[d]));
  return same;
}

template <class Int, size_t N>
void check_sizes(const Named& arg, const char* rule, const std::array<Int, N>& want) {
  const auto got = sizes_of<Int>(arg.tensor);
  TMO_CHECK(has_sizes(got, want), "gated_delta_rule: ", arg.name, " must be ", rule, " = ", c10::ArrayRef<Int>(want),
            ", got shape ", got, ". Reshape it, or check the sizes of q and v.");
}

inline void check_state_memory(const GatedDeltaTensors& t) {
  TMO_CHECK(!repeats_elements(t.state), "gated_delta_rule: state must not hold one element twice, got strides ",
            t.state.strides(), " for shape ", t.state.sizes(), ". Clone an expanded tensor first.");
  for (const Named& arg : {Named{"q", t.q}, Named{"k", t.k}, Named{"v", t.v}, Named{"g", t.g}, Named{"beta", t.beta}}) {
    TMO_CHECK(!overlaps(t.state, arg.tensor),
              "gated_delta_rule: state must not share memory with another argument, got one that overlaps ", arg.name,
              ". Clone ", arg.name, " first.");
  }
}

}  // namespace gated_delta_detail

template <class Int>
GatedDeltaShape<Int> check_gated_delta_rule(const GatedDeltaTensors& t) {
  using namespace gated_delta_detail;
  check_dtypes(t);
  const auto q = sizes_of<Int>(t.q), v = sizes_of<Int>(t.v), g = sizes_of<Int>(t.g);
  TMO_CHECK(q.size() == 4, "gated_delta_rule: q must be [B, T, Hk, Dk], got shape ", q, ". Add or merge dimensions.");
  TMO_CHECK(v.size() == 4, "gated_delta_rule: v must be [B, T, Hv, Dv], got shape ", v, ". Add or merge dimensions.");
  const GatedDeltaShape<Int> s{g.size() == 4, q[0], q[1], q[2], v[2], q[3], v[3]};
  check_sizes<Int, 4>({"k", t.k}, "[B, T, Hk, Dk]", {s.B, s.T, s.Hk, s.Dk});
  check_sizes<Int, 4>({"v", t.v}, "[B, T, Hv, Dv]", {s.B, s.T, s.Hv, s.Dv});
  TMO_CHECK(both(le(Int(1), s.Dk), le(s.Dk, Int(kGatedDeltaMaxD))), "gated_delta_rule: Dk must be from 1 to ",
            kGatedDeltaMaxD, ", got ", s.Dk, ". Split larger heads.");
  TMO_CHECK(both(le(Int(1), s.Dv), le(s.Dv, Int(kGatedDeltaMaxD))), "gated_delta_rule: Dv must be from 1 to ",
            kGatedDeltaMaxD, ", got ", s.Dv, ". Split larger heads.");
  TMO_CHECK(either(le(Int(1), s.Hk), eq(s.Hv, Int(0))),
            "gated_delta_rule: q must have at least one head when v has any, got ", s.Hk, " for ", s.Hv,
            ". Check the head dimension.");
  if (!known(eq(s.Hv, s.Hk))) {
    TMO_CHECK(eq(s.Hv % s.Hk, Int(0)), "gated_delta_rule: the heads of v must be a multiple of the heads of q, got ",
              s.Hv, " and ", s.Hk, ". Check the head dimension.");
  }
  if (s.decay_per_channel) {
    check_sizes<Int, 4>({"g", t.g}, "[B, T, Hv] or [B, T, Hv, Dk]", {s.B, s.T, s.Hv, s.Dk});
  } else {
    check_sizes<Int, 3>({"g", t.g}, "[B, T, Hv] or [B, T, Hv, Dk]", {s.B, s.T, s.Hv});
  }
  check_sizes<Int, 3>({"beta", t.beta}, "[B, T, Hv]", {s.B, s.T, s.Hv});
  check_sizes<Int, 4>({"state", t.state}, "[B, Hv, Dv, Dk]", {s.B, s.Hv, s.Dv, s.Dk});
  check_state_memory(t);
  return s;
}

// Whether the CPU takes the chunked kernel. Fewer steps do not pay for it; and with fewer channels than a chunk has
// steps its keys are far from orthogonal, so that its sums round two to three times as much as the recurrence does.
inline bool gated_delta_in_chunks(int64_t T, int64_t Dk) { return T >= 12 && Dk >= 32; }

}  // namespace tmo
