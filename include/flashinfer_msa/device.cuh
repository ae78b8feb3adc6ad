// SPDX-License-Identifier: Apache-2.0
// The one seam between the kernels and the machine. Everything that a GPU does and a CPU does not
// (thread indices, barriers, votes, shuffles) is reached through this file, so that the tests can
// swap it for an emulation (tests/emulator) and run the very same kernels on a CPU.
//
// Every collective below must be called by all threads of its scope: there are no lane masks.
#pragma once

#include <cstdint>

#define FLASHINFER_MSA_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

#if defined(FLASHINFER_MSA_EMULATED_DEVICE)
#include FLASHINFER_MSA_EMULATED_DEVICE
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>

#define FLASHINFER_MSA_DEVICE __device__ __forceinline__
#define FLASHINFER_MSA_PRAGMA(text) _Pragma(#text)
#define FLASHINFER_MSA_UNROLL _Pragma("unroll")
#define FLASHINFER_MSA_UNROLL_BY(n) FLASHINFER_MSA_PRAGMA(unroll n)

namespace flashinfer_msa {

// Bytes of shared memory that a thread block of the kernel takes for a call.
template <class Kernel, class ParamsT>
auto storage_of(const ParamsT& p, int) -> decltype(Kernel::storage_of(p)) {
  return Kernel::storage_of(p);
}
template <class Kernel, class ParamsT>
size_t storage_of(const ParamsT&, long) {
  return sizeof(typename Kernel::Storage);
}

FLASHINFER_MSA_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
FLASHINFER_MSA_DEVICE int lane_index() { return static_cast<int>(threadIdx.x) & 31; }
FLASHINFER_MSA_DEVICE int warp_index() { return static_cast<int>(threadIdx.x) >> 5; }
FLASHINFER_MSA_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
FLASHINFER_MSA_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }

FLASHINFER_MSA_DEVICE void sync_block() { __syncthreads(); }
FLASHINFER_MSA_DEVICE void sync_warp() { __syncwarp(); }

// The thread blocks of a cluster (from 9.0 on) wait for each other: what was written before one's
// arrival can be read after another's wait. Whole warps call; a thread that has ended counts as
// arrived.
FLASHINFER_MSA_DEVICE void arrive_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
FLASHINFER_MSA_DEVICE void wait_cluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
// The same place of this block's shared memory in that of another one of the cluster.
template <class T>
FLASHINFER_MSA_DEVICE T* of_block(T* p, int rank) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return reinterpret_cast<T*>(there);
#else
  return p;
#endif
}

FLASHINFER_MSA_DEVICE uint32_t warp_ballot(bool predicate) { return __ballot_sync(~0u, predicate); }
FLASHINFER_MSA_DEVICE bool warp_any(bool predicate) { return __any_sync(~0u, predicate); }
FLASHINFER_MSA_DEVICE int warp_sum(int x) { return __reduce_add_sync(~0u, x); }
FLASHINFER_MSA_DEVICE int warp_min(int x) { return __reduce_min_sync(~0u, x); }
FLASHINFER_MSA_DEVICE int warp_max(int x) { return __reduce_max_sync(~0u, x); }

FLASHINFER_MSA_DEVICE bool warp_all(bool predicate) { return __all_sync(~0u, predicate); }

// The value that lane `lane` passes.
FLASHINFER_MSA_DEVICE int warp_shuffle(int x, int lane) { return __shfl_sync(~0u, x, lane); }
// The value that lane `lane_index() ^ bits` passes.
FLASHINFER_MSA_DEVICE float warp_exchange(float x, int bits) {
  return __shfl_xor_sync(~0u, x, bits);
}
FLASHINFER_MSA_DEVICE int warp_exchange(int x, int bits) { return __shfl_xor_sync(~0u, x, bits); }

FLASHINFER_MSA_DEVICE int count_bits(uint32_t x) { return __popc(x); }
// How many zeros stand before the highest bit of x, which has one. (__clz takes two instructions.)
FLASHINFER_MSA_DEVICE int leading_zeros(uint32_t x) {
  int zeros;
  asm("bfind.shiftamt.u32 %0, %1;" : "=r"(zeros) : "r"(x));
  return zeros;
}
FLASHINFER_MSA_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
FLASHINFER_MSA_DEVICE float bits_float(uint32_t x) { return __uint_as_float(x); }

// The larger and the smaller of two scores. `larger_or_nan` answers NaN if either is one.
FLASHINFER_MSA_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
FLASHINFER_MSA_DEVICE float smaller(float a, float b) { return fminf(a, b); }
FLASHINFER_MSA_DEVICE float larger_or_nan(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// The upper halves of two scores' bits, which are in the order of the scores but for those that
// share a half.
struct HalfPair {
  uint32_t bits;
};
FLASHINFER_MSA_DEVICE HalfPair upper_halves(float a, float b) {
  return {__byte_perm(float_bits(a), float_bits(b), 0x7632)};
}
FLASHINFER_MSA_DEVICE float lower_of(HalfPair x) { return bits_float(x.bits << 16); }
FLASHINFER_MSA_DEVICE float upper_of(HalfPair x) { return bits_float(x.bits & 0xffff0000u); }
FLASHINFER_MSA_DEVICE HalfPair swapped(HalfPair x) { return {__byte_perm(x.bits, 0, 0x1032)}; }
FLASHINFER_MSA_DEVICE HalfPair larger(HalfPair a, HalfPair b) {
  asm("max.bf16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
  return a;
}
FLASHINFER_MSA_DEVICE HalfPair smaller(HalfPair a, HalfPair b) {
  asm("min.bf16x2 %0, %0, %1;" : "+r"(a.bits) : "r"(b.bits));
  return a;
}

// Bytes of ones for the halves of a and b that fall short of those of `least` (the signs of their
// differences, see mark_if_short), the lower half of a in the highest byte, the upper of b in the
// lowest.
FLASHINFER_MSA_DEVICE uint32_t bytes_if_short(HalfPair a, HalfPair b, HalfPair least) {
  constexpr uint32_t kMinusOne = 0xbf80bf80u;  // 8.0 has no subtraction of pairs
  uint32_t short_of;
  asm("{ .reg .b32 x, y; fma.rn.bf16x2 x, %3, %4, %1; fma.rn.bf16x2 y, %3, %4, %2;"
      " prmt.b32 %0, x, y, 0x9bdf; }"
      : "=r"(short_of)
      : "r"(a.bits), "r"(b.bits), "r"(least.bits), "r"(kMinusOne));
  return short_of;
}

// `marks`, moved up by one, and a bit for whether a score falls short of `least` (see
// least_reaching; NaN never does). The sign of the difference tells: an addition issues at twice
// the rate of a comparison, and one funnel shift takes the sign in.
FLASHINFER_MSA_DEVICE uint32_t mark_if_short(uint32_t marks, float score, float least) {
  return __funnelshift_l(float_bits(score - least), marks, 1);
}

// Adds one to `count` if a exceeds b: two instructions, which the compiler makes three of.
FLASHINFER_MSA_DEVICE void count_if_exceeds(int& count, float a, float b) {
  asm("{ .reg .pred p; setp.gt.f32 p, %1, %2; @p add.s32 %0, %0, 1; }"
      : "+r"(count)
      : "f"(a), "f"(b));
}

// A score passes unless it is at most `passing`: NaN does.
FLASHINFER_MSA_DEVICE void count_if_passes(int& count, float score, float passing) {
  asm("{ .reg .pred p; setp.gtu.f32 p, %1, %2; @p add.s32 %0, %0, 1; }"
      : "+r"(count)
      : "f"(score), "f"(passing));
}

// Where the next score of a list in shared memory goes; its block goes kApart bytes behind it.
template <int kApart>
class ListCursor {
 public:
  FLASHINFER_MSA_DEVICE explicit ListCursor(float* score)
      : at_(static_cast<uint32_t>(__cvta_generic_to_shared(score))) {}

  FLASHINFER_MSA_DEVICE void append_if_passes(float score, float passing, int32_t block) {
    asm volatile(
        "{ .reg .pred p; setp.gtu.f32 p, %1, %2; @p st.shared.f32 [%0], %1;"
        " @p st.shared.s32 [%0 + %4], %3; @p add.u32 %0, %0, 4; }"
        : "+r"(at_)
        : "f"(score), "f"(passing), "r"(block), "n"(kApart)
        : "memory");
  }

 private:
  uint32_t at_;
};

// Returns when the kernel before this one on the stream has ended and what it wrote can be read.
// Each thread calls it before it touches anything of global memory: an earlier kernel may still
// write the scores and the extents, or read the output. `address` is worked out by then. A wait
// only where this kernel may start before that (kDependentLaunch), which 8.x cannot.
FLASHINFER_MSA_DEVICE void wait_for_producer(const void* address) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;  // %0" ::"l"(address) : "memory");
#endif
}

// Scores widen to float exactly; they are read once and never written by the kernels. The
// second-level cache fetches whole lines: other rows want the rest of them.
FLASHINFER_MSA_DEVICE float load_score(const float* p) {
  float score;
  asm("ld.global.nc.L2::128B.f32 %0, [%1];" : "=f"(score) : "l"(p));
  return score;
}
FLASHINFER_MSA_DEVICE uint16_t load_half(const void* p) {
  uint16_t bits;
  asm("ld.global.nc.L2::128B.u16 %0, [%1];" : "=h"(bits) : "l"(p));
  return bits;
}
FLASHINFER_MSA_DEVICE float load_score(const __half* p) {
  return __half2float(__ushort_as_half(load_half(p)));
}
FLASHINFER_MSA_DEVICE float load_score(const __nv_bfloat16* p) {
  return __bfloat162float(__ushort_as_bfloat16(load_half(p)));
}

// The same, or -inf. The address is worked out in any case, which is cheaper than not to.
FLASHINFER_MSA_DEVICE float load_score_if(bool exists, const float* p) {
  float score;
  asm("{ .reg .pred p; setp.ne.b32 p, %1, 0; mov.b32 %0, 0xff800000; @p ld.global.nc.L2::128B.f32 "
      "%0, [%2]; "
      "}"
      : "=f"(score)
      : "r"(int{exists}), "l"(p));
  return score;
}
template <class Half>
FLASHINFER_MSA_DEVICE float load_score_if(bool exists, const Half* p) {
  return exists ? load_score(p) : __int_as_float(0xff800000);
}

// Keeps the compiler from working x out again where it is used.
FLASHINFER_MSA_DEVICE int in_register(int x) {
  asm("" : "+r"(x));
  return x;
}

// A copy of kBytes (4 or 16, aligned) from global to shared memory that runs on while the thread
// does.
template <int kBytes>
FLASHINFER_MSA_DEVICE void copy_async(void* to, const void* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(address), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4;" ::"r"(address), "l"(from)
                 : "memory");
  }
}
// Closes a group of the thread's copies.
FLASHINFER_MSA_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until no more than the last kPending of the thread's groups are under way.
template <int kPending>
FLASHINFER_MSA_DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 16 bytes of scores that lie together in shared memory, aligned to 16.
template <class Score>
FLASHINFER_MSA_DEVICE void read_scores(const Score* p, float (&v)[16 / sizeof(Score)]) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  Score scores[16 / sizeof(Score)];
  memcpy(scores, &bits, sizeof(bits));
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < static_cast<int>(16 / sizeof(Score)); ++i)
    v[i] = static_cast<float>(scores[i]);
}

}  // namespace flashinfer_msa

#endif
