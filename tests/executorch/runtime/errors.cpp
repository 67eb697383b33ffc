// A call that has to fail: the last dimension of the key is not contiguous, and nothing in the runtime would copy it.
#include "host.h"

extern "C" {
AOTITorchError aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t,
                                        TensorHandle*);
AOTITorchError aoti_torch_mps_sdpa(TensorHandle, TensorHandle, TensorHandle, TensorHandle*, double, int32_t, double*,
                                   int32_t, TensorHandle*, int64_t*, double, TensorHandle*, TensorHandle*);
}

int main() {
  constexpr int32_t kFloat = 6;
  const int64_t sizes[] = {1, 2, 16, 16}, rows[] = {512, 256, 16, 1}, columns[] = {512, 256, 1, 16};
  TensorHandle query, key, result;
  aoti_torch_empty_strided(4, sizes, rows, kFloat, kMps, 0, &query);
  aoti_torch_empty_strided(4, sizes, columns, kFloat, kMps, 0, &key);
  return aoti_torch_mps_sdpa(query, key, query, nullptr, 0.0, 0, nullptr, 0, nullptr, nullptr, 0.0, nullptr, &result);
}
