// What one core of this machine can do at most: read memory, and multiply and add in float32.
// Compiled for the machine it runs on, so that vectors are as wide as it has them; timed from roof.py.
#include <cstddef>

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vec __attribute__((vector_size(kBytes)));
typedef long long Ints __attribute__((vector_size(kBytes), aligned(1), may_alias));

// Four independent sums hide the latency of an operation; the count is in bytes, a multiple of 4 * kBytes.
extern "C" long long read_memory(const char* data, size_t bytes) {
  Ints sums[4] = {};
  for (size_t i = 0; i < bytes; i += 4 * kBytes)
    for (int j = 0; j < 4; ++j) sums[j] ^= *reinterpret_cast<const Ints*>(data + i + j * kBytes);
  const Ints sum = (sums[0] ^ sums[1]) ^ (sums[2] ^ sums[3]);
  return sum[0] ^ sum[1];
}

// Twelve chains keep two FMA units of latency 4 or 5 full and leave registers for the factors.
extern "C" double multiply_add(size_t steps, float factor) {
  Vec a, b, chains[12];
  for (size_t i = 0; i < kBytes / sizeof(float); ++i) a[i] = factor, b[i] = 1.0f - factor;
  for (int j = 0; j < 12; ++j) chains[j] = a * static_cast<float>(j);  // unlike, or the compiler keeps one for all
  for (size_t step = 0; step < steps; ++step)
    for (int j = 0; j < 12; ++j) chains[j] = chains[j] * a + b;
  Vec sum = {};
  for (int j = 0; j < 12; ++j) sum += chains[j];
  return sum[0];
}

extern "C" size_t flops_per_step() { return 12 * 2 * kBytes / sizeof(float); }
