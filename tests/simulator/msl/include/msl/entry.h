// Calls a kernel with what its parameters' attributes ask for.
#pragma once
#include "../../runtime/abi.h"
#include "simd.h"

namespace msl {

struct Position {
  u32 value[3];
};

inline Position position(Parameter kind) {
  const Group& g = msl_group;
  const Lane& lane = *msl_lane;
  auto three = [](const u32* v) { return Position{{v[0], v[1], v[2]}}; };
  auto one = [](u32 v) { return Position{{v, 0, 0}}; };
  switch (kind) {
    case Parameter::thread_position_in_grid: {
      Position p;
      for (int i = 0; i < 3; i++) p.value[i] = g.position[i] * g.full_size[i] + lane.position[i];
      return p;
    }
    case Parameter::thread_position_in_threadgroup:
      return three(lane.position);
    case Parameter::threadgroup_position_in_grid:
      return three(g.position);
    case Parameter::threads_per_grid:
      return three(g.grid);
    case Parameter::threadgroups_per_grid:
      return three(g.groups);
    case Parameter::threads_per_threadgroup:
      return three(g.size);
    case Parameter::dispatch_threads_per_threadgroup:
      return three(g.full_size);
    case Parameter::thread_index_in_threadgroup:
      return one(lane.flat);
    case Parameter::thread_index_in_simdgroup:
      return one(lane.index);
    case Parameter::thread_index_in_quadgroup:
      return one(lane.index % 4);
    case Parameter::simdgroup_index_in_threadgroup:
      return one(lane.flat / kSimdWidth);
    case Parameter::quadgroup_index_in_threadgroup:
      return one(lane.flat / 4);
    case Parameter::simdgroups_per_threadgroup:
      return one(g.simdgroups);
    case Parameter::dispatch_simdgroups_per_threadgroup:
      return one((g.full_size[0] * g.full_size[1] * g.full_size[2] + kSimdWidth - 1) / kSimdWidth);
    case Parameter::quadgroups_per_threadgroup:
      return one((g.threads + 3) / 4);
    default:
      return one(kSimdWidth);
  }
}

inline void* address(Argument argument) {
  void** table = argument.kind == Parameter::threadgroup ? msl_group.dynamic : msl_group.buffers;
  return table[argument.index];
}

template <class A>
struct Fetch {
  static A get(Argument argument) { return static_cast<A>(position(argument.kind).value[0]); }
};
template <class T, int N>
struct Fetch<metal::vec<T, N>> {
  static metal::vec<T, N> get(Argument argument) {
    Position p = position(argument.kind);
    metal::vec<T, N> v;
    for (int i = 0; i < N; i++) v.data[i] = static_cast<T>(p.value[i]);
    return v;
  }
};
template <class A>
struct Fetch<const A> : Fetch<A> {};
template <class T>
struct Fetch<T*> {
  static T* get(Argument argument) { return static_cast<T*>(address(argument)); }
};
template <class T>
struct Fetch<T&> {
  static T& get(Argument argument) { return *static_cast<T*>(address(argument)); }
};

template <class... A, metal::size_t... I>
void call(void (*kernel)(A...), const Argument* arguments, metal::index_sequence<I...>) {
  kernel(Fetch<A>::get(arguments[I])...);
}
template <class... A>
void call(void (*kernel)(A...), const Argument* arguments) {
  call(kernel, arguments, metal::make_index_sequence<sizeof...(A)>());
}

// The group's variable that is declared at place `id` of the source, in this instantiation.
template <class T, int id>
MSL_FUNCTION T& threadgroup_variable(MSL_PLACE) {
  static constexpr char key = 0;
  return *static_cast<T*>(msl_threadgroup_variable(&key, sizeof(T), file_, line_));
}

}  // namespace msl
