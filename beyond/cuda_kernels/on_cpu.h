// What a CUDA kernel needs of its language, for a CPU's compiler: see on_cpu.cpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

struct Index { int x, y; };
extern Index threadIdx, blockIdx, gridDim;

void wait_for_all(int line);                           // until every thread of the block has come to this line
float exchange(float value, int from_lane, int line);  // a value of each lane for one of another

#define __global__
#define __device__ static
#define __shared__ static __attribute__((section("shared_memory")))
#define __syncthreads() wait_for_all(__LINE__)
#define __shfl_sync(lanes, value, from) exchange(value, from, __LINE__)
#define __shfl_xor_sync(lanes, value, distance) exchange(value, threadIdx.x ^ (distance), __LINE__)

using std::min;
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

extern "C" void decode(const unsigned *, const unsigned *, const unsigned *, const int *, const int *, float *, int);
