// SPDX-License-Identifier: Apache-2.0
// The functions of <flashinfer_msa/device.cuh> on a CPU. A thread of a block is a fibre; a barrier
// or a collective is a rendezvous, at which the threads of the scope must meet at one call site.
//
// To add a function of the seam: arithmetic is one line here. A warp collective is a few, see
// warp_shuffle: `meet` hands each lane what all lanes brought. A load or a store needs nothing, the
// compiler reports every access (machine/memory.cpp); one that it does not see calls `touch`. A
// barrier needs a scope: warp and block are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

using cudaStream_t = void*;
enum cudaError_t : int { cudaSuccess = 0, cudaErrorNotSupported = 801 };
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated device"; }

#define FLASHINFER_MSA_DEVICE inline
#define FLASHINFER_MSA_UNROLL
#define FLASHINFER_MSA_UNROLL_BY(count)

namespace flashinfer_msa {

namespace emulator {

// A place in the kernels; as a default argument, the caller's.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

struct Lanes {
  uint64_t value[32];
};

struct Kernel {
  const char* name;
  int64_t grid_x, grid_y;
  int shares;  // consecutive thread blocks of x that are a cluster
  int threads;
  size_t storage, alignment;
  const void* params;
  size_t params_size;
  void (*body)(const void* params, void* storage);
};

int thread();
int block_x();
int block_y();

// Lanes of the warp meet: each brings a value and gets all of them. Memory is not ordered by it.
Lanes meet(const char* what, Site site, uint64_t value);
void sync_warp(Site site);
void sync_block(Site site);
void arrive_cluster(Site site);
void wait_cluster(Site site);
const void* of_block(const void* p, int rank);
void wait_for_producer();  // before it a thread may touch no buffer of the call's

void copy_async(void* to, const void* from, size_t size, Site site);
void commit_copies();
void wait_copies(size_t pending);

void touch(const void* p, size_t size, bool writes);
void expect_aligned(const void* p, size_t alignment);
bool is_mutant(int number);  // for copies of the kernels with faults in them
void prepare(const char* name, int threads, size_t storage);
void launch(const Kernel& kernel);

template <class T>
constexpr const char* name_of() {
  return __PRETTY_FUNCTION__;
}

template <class To, class From>
inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float half_value(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 0) {  // zero or subnormal: a multiple of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return bit_cast<float>(bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t widened = exponent == 31 ? 255 : exponent + 127 - 15;
  return bit_cast<float>(sign | widened << 23 | mantissa << 13);
}

}  // namespace emulator
}  // namespace flashinfer_msa

// As many bits as on the GPU, and no arithmetic but what the kernels do: widen, and make a zero.
struct __half {
  uint16_t bits;
  __half() = default;
  explicit constexpr __half(float zero) : bits(static_cast<uint16_t>(zero)) {}
  explicit operator float() const { return flashinfer_msa::emulator::half_value(bits); }
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  explicit constexpr __nv_bfloat16(float zero) : bits(static_cast<uint16_t>(zero)) {}
  explicit operator float() const {
    return flashinfer_msa::emulator::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

namespace flashinfer_msa {

inline int thread_index() { return emulator::thread(); }
inline int lane_index() { return emulator::thread() % 32; }
inline int warp_index() { return emulator::thread() / 32; }
inline int block_x() { return emulator::block_x(); }
inline int block_y() { return emulator::block_y(); }

// The address is there for the GPU's compiler, which shall have worked it out by then.
inline void wait_for_producer(const void*) { emulator::wait_for_producer(); }
inline void sync_block(emulator::Site site = emulator::Site::here()) { emulator::sync_block(site); }
inline void sync_warp(emulator::Site site = emulator::Site::here()) { emulator::sync_warp(site); }

inline void arrive_cluster(emulator::Site site = emulator::Site::here()) {
  emulator::arrive_cluster(site);
}
inline void wait_cluster(emulator::Site site = emulator::Site::here()) {
  emulator::wait_cluster(site);
}
template <class T>
inline T* of_block(T* p, int rank) {
  return const_cast<T*>(static_cast<const T*>(emulator::of_block(p, rank)));
}

inline uint32_t warp_ballot(bool predicate, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_ballot", site, predicate);
  uint32_t ballot = 0;
  for (int i = 0; i < 32; ++i) ballot |= static_cast<uint32_t>(all.value[i]) << i;
  return ballot;
}
inline bool warp_any(bool predicate, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_any", site, predicate);
  bool any = false;
  for (uint64_t value : all.value) any |= value != 0;
  return any;
}
inline bool warp_all(bool predicate, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_all", site, predicate);
  bool each = true;
  for (uint64_t value : all.value) each &= value != 0;
  return each;
}
inline int warp_sum(int x, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_sum", site, static_cast<uint32_t>(x));
  uint32_t sum = 0;  // wraps, as on the GPU
  for (uint64_t value : all.value) sum += static_cast<uint32_t>(value);
  return static_cast<int>(sum);
}
inline int warp_min(int x, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_min", site, static_cast<uint32_t>(x));
  for (uint64_t value : all.value) x = static_cast<int>(value) < x ? static_cast<int>(value) : x;
  return x;
}
inline int warp_max(int x, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_max", site, static_cast<uint32_t>(x));
  for (uint64_t value : all.value) x = static_cast<int>(value) > x ? static_cast<int>(value) : x;
  return x;
}
inline int warp_shuffle(int x, int lane, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_shuffle", site, static_cast<uint32_t>(x));
  return static_cast<int>(all.value[lane & 31]);
}
inline int warp_exchange(int x, int bits, emulator::Site site = emulator::Site::here()) {
  const emulator::Lanes all = emulator::meet("warp_exchange", site, static_cast<uint32_t>(x));
  return static_cast<int>(all.value[lane_index() ^ bits]);
}
inline float warp_exchange(float x, int bits, emulator::Site site = emulator::Site::here()) {
  const int theirs = warp_exchange(emulator::bit_cast<int>(x), bits, site);
  return emulator::bit_cast<float>(theirs);
}

inline int count_bits(uint32_t x) { return __builtin_popcount(x); }
inline int leading_zeros(uint32_t x) { return x == 0 ? -1 : __builtin_clz(x); }
inline uint32_t float_bits(float x) { return emulator::bit_cast<uint32_t>(x); }
inline float bits_float(uint32_t x) { return emulator::bit_cast<float>(x); }

// PTX: one NaN yields the other operand, two the canonical NaN; -0.0 is below +0.0.
inline float larger(float a, float b) {
  if (a != a) return b == b ? b : bits_float(0x7fffffffu);
  if (b != b) return a;
  if (a == b) return float_bits(a) >> 31 ? b : a;
  return a > b ? a : b;
}
inline float smaller(float a, float b) {
  if (a != a) return b == b ? b : bits_float(0x7fffffffu);
  if (b != b) return a;
  if (a == b) return float_bits(a) >> 31 ? a : b;
  return a < b ? a : b;
}
inline float larger_or_nan(float a, float b) {
  return a == a && b == b ? larger(a, b) : bits_float(0x7fffffffu);
}

struct HalfPair {
  uint32_t bits;
};
inline HalfPair upper_halves(float a, float b) {
  return {float_bits(a) >> 16 | (float_bits(b) & 0xffff0000u)};
}
inline float lower_of(HalfPair x) { return bits_float(x.bits << 16); }
inline float upper_of(HalfPair x) { return bits_float(x.bits & 0xffff0000u); }
inline HalfPair swapped(HalfPair x) { return {x.bits >> 16 | x.bits << 16}; }
inline HalfPair larger(HalfPair a, HalfPair b) {
  return upper_halves(larger(lower_of(a), lower_of(b)), larger(upper_of(a), upper_of(b)));
}
inline HalfPair smaller(HalfPair a, HalfPair b) {
  return upper_halves(smaller(lower_of(a), lower_of(b)), smaller(upper_of(a), upper_of(b)));
}

inline uint32_t mark_if_short(uint32_t marks, float score, float least) {
  const float difference = score - least;  // a NaN of the GPU is positive
  return marks << 1 | (difference == difference ? float_bits(difference) >> 31 : 0u);
}

inline uint32_t bytes_if_short(HalfPair a, HalfPair b, HalfPair least) {
  // Here a difference may round where halves would not; its sign is the same.
  const auto byte_if_short = [](float x, float least) { return mark_if_short(0, x, least) * 255u; };
  return byte_if_short(lower_of(a), lower_of(least)) << 24 |
         byte_if_short(upper_of(a), upper_of(least)) << 16 |
         byte_if_short(lower_of(b), lower_of(least)) << 8 |
         byte_if_short(upper_of(b), upper_of(least));
}

inline void count_if_exceeds(int& count, float a, float b) { count += a > b; }
inline void count_if_passes(int& count, float score, float passing) {
  count += !(score <= passing);  // NaN passes
}

template <int kApart>
class ListCursor {
 public:
  explicit ListCursor(float* score) : at_(score) {}

  void append_if_passes(float score, float passing, int32_t block) {
    if (score <= passing) return;
    *at_ = score;
    *reinterpret_cast<int32_t*>(reinterpret_cast<char*>(at_) + kApart) = block;
    ++at_;
  }

 private:
  float* at_;
};

inline int in_register(int x) { return x; }

template <class Score>
inline float load_score(const Score* p) {
  return static_cast<float>(*p);
}
template <class Score>
inline float load_score_if(bool exists, const Score* p) {
  return exists ? load_score(p) : bits_float(0xff800000u);
}
template <class Score, int kCount>
inline void load_scores(const Score* p, float (&v)[kCount]) {
  static_assert(kCount * sizeof(Score) % 16 == 0, "whole vectors");
  emulator::expect_aligned(p, 16);
  for (int i = 0; i < kCount; ++i) v[i] = static_cast<float>(p[i]);
}
template <class Score>
inline void read_scores(const Score* p, float (&v)[16 / sizeof(Score)]) {
  load_scores(p, v);
}

// Takes place as late as it may: when the thread waits for it.
template <int kBytes>
inline void copy_async(void* to, const void* from, emulator::Site site = emulator::Site::here()) {
  emulator::copy_async(to, from, kBytes, site);
}
inline void commit_copies() { emulator::commit_copies(); }
template <int kPending>
inline void wait_copies() {
  emulator::wait_copies(kPending);
}

template <class Policy>
cudaError_t find_features(int32_t& features) {
  return features = ~0, cudaSuccess;
}

template <class Kernel>
cudaError_t prepare_kernel() {
  emulator::prepare(emulator::name_of<Kernel>(), Kernel::kThreads,
                    sizeof(typename Kernel::Storage));
  return cudaSuccess;
}

template <class Kernel>
cudaError_t expect_clusters(int32_t&) {
  return cudaSuccess;
}

// Bytes of shared memory that a thread block of the kernel takes for a call.
template <class Kernel, class ParamsT>
auto storage_of(const ParamsT& p, int) -> decltype(Kernel::storage_of(p)) {
  return Kernel::storage_of(p);
}
template <class Kernel, class ParamsT>
size_t storage_of(const ParamsT&, long) {
  return sizeof(typename Kernel::Storage);
}

template <class Kernel, class ParamsT>
cudaError_t launch_kernel(const ParamsT& params, cudaStream_t) {
  const auto body = [](const void* params, void* storage) {
    Kernel{*static_cast<const ParamsT*>(params), *static_cast<typename Kernel::Storage*>(storage)}
        .run();
  };
  const auto grid = Kernel::grid(params);
  emulator::launch({emulator::name_of<Kernel>(), grid.x, grid.y, Kernel::kShares, Kernel::kThreads,
                    storage_of<Kernel>(params, 0), alignof(typename Kernel::Storage), &params,
                    sizeof(params), body});
  return cudaSuccess;
}

}  // namespace flashinfer_msa
