// Decode attention over pages, by hand. A block of threads works for one request and one K/V head, and has a warp of
// 32 threads for each query head that shares the K/V head. It reads the sequence in tiles of 32 tokens:
//
//   1. All warps copy K and V of the tile to shared memory. So each is read from the GPU's memory once for all heads.
//   2. Scores: each thread of a warp, a lane, takes one of the 32 tokens.
//   3. Softmax, online: the warp's lanes exchange their scores' maximum and their weights' sum.
//   4. The sum of V by weights: each lane takes some of the head's dimensions, and gets the weights from the others.
//
// q is [B, H_kv, GROUPS, D], pages are [pages, PAGE_SIZE, H_kv, D], all bfloat16: two in a 32-bit word. page_tables is
// [B, table_stride], lengths [B], out [B, H_kv, GROUPS, D] float32. Launch H_kv x B blocks of 32 x GROUPS threads.

#ifndef D
#define D 128  // a multiple of 64
#define GROUPS 2
#define PAGE_SIZE 16
#endif

constexpr int LANES = 32, TILE = LANES;   // tokens
constexpr int WORDS = D / 2;              // of a head of one token
constexpr int PITCH = WORDS + 1;          // words from one token's K to the next one's
constexpr int OWN = WORDS / LANES;        // words of the result that a lane takes
constexpr unsigned ALL = 0xffffffff;      // lanes that take part in an exchange
constexpr float NOTHING = -1e30f;         // the score of a token that is not there

// A bfloat16 is the upper half of a float32.
__device__ float low(unsigned word) { return __uint_as_float(word << 16); }
__device__ float high(unsigned word) { return __uint_as_float(word & 0xffff0000); }

__device__ float warp_maximum(float x) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, distance));
    return x;
}

__device__ float warp_sum(float x) {
    for (int distance = LANES / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL, x, distance);
    return x;
}

extern "C" __global__ void decode(
    const unsigned *q, const unsigned *k_pages, const unsigned *v_pages, const int *page_tables, const int *lengths,
    float *out, int table_stride) {
    __shared__ unsigned query[GROUPS][WORDS], keys[TILE][PITCH], values[TILE][WORDS];
    const int head = blockIdx.x, H_kv = gridDim.x, request = blockIdx.y, lane = threadIdx.x, group = threadIdx.y;
    const int row = (request * H_kv + head) * GROUPS + group, length = lengths[request];
    const float scale = rsqrtf(D);

    for (int word = lane; word < WORDS; word += LANES) query[group][word] = q[row * WORDS + word];
    float maximum = NOTHING, total = 0, result[OWN][2] = {};
    for (int start = 0; start < length; start += TILE) {
        const int count = min(TILE, length - start);

        __syncthreads();  // every warp has done with the tile before
        for (int token = group; token < count; token += GROUPS) {
            const size_t page = page_tables[request * table_stride + (start + token) / PAGE_SIZE];
            const size_t place = ((page * PAGE_SIZE + (start + token) % PAGE_SIZE) * H_kv + head) * WORDS;
            for (int word = lane; word < WORDS; word += LANES) {  // neighbouring lanes read neighbouring words
                keys[token][word] = k_pages[place + word];
                values[token][word] = v_pages[place + word];
            }
        }
        __syncthreads();  // the tile is complete

        float score = 0;
        for (int word = 0; word < WORDS; word++) {
            score += low(query[group][word]) * low(keys[lane][word]);
            score += high(query[group][word]) * high(keys[lane][word]);
        }
        score = lane < count ? score * scale : NOTHING;

        const float new_maximum = fmaxf(maximum, warp_maximum(score));
        const float weight = expf(score - new_maximum), rescale = expf(maximum - new_maximum);
        total = total * rescale + warp_sum(weight);
        maximum = new_maximum;

        for (int i = 0; i < OWN; i++)
            for (int half = 0; half < 2; half++) result[i][half] *= rescale;
        for (int token = 0; token < count; token++) {
            const float its_weight = __shfl_sync(ALL, weight, token);
            for (int i = 0; i < OWN; i++) {
                const unsigned word = values[token][i * LANES + lane];
                result[i][0] += its_weight * low(word);
                result[i][1] += its_weight * high(word);
            }
        }
    }
    for (int i = 0; i < OWN; i++)
        for (int half = 0; half < 2; half++) out[row * D + 2 * (i * LANES + lane) + half] = result[i][half] / total;
}
