// SPDX-License-Identifier: Apache-2.0
// Tells which kernel a call launches, without running it. It is the last part of a translation unit
// that starts with the rendered templates; the rest of the emulated machine is not linked.
//
// Reads calls as heads, blocks, tokens, the three strides and the features to use; answers a line
// for each of them.
#include <cstdio>

namespace flashinfer_msa {
namespace emulator {

void prepare(const char* name, int, size_t) { std::printf("prepared %s\n", name); }
void launch(const Kernel& kernel) { std::printf("launched %s\n", kernel.name); }

}  // namespace emulator
}  // namespace flashinfer_msa

int main() {
  int32_t features = 0;
  if (topk_select_prepare(&features) != 0) return 1;
  flashinfer_msa::Call call = {};
  long long head, block, token;
  while (std::scanf("%d %d %d %lld %lld %lld %d", &call.heads, &call.blocks, &call.tokens, &head,
                    &block, &token, &call.features) == 7) {
    call.head_stride = head, call.block_stride = block, call.token_stride = token;
    if (topk_select(&call) != 0) return 1;
  }
  return 0;
}
