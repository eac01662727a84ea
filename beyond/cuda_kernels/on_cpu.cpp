// Runs decode.cu on a CPU, to check its arithmetic. Each thread of a block is a coroutine, and threads take turns: each
// runs up to the next place where it waits for others, and none goes on before all have come there.
//
// It also counts the turns of shared memory. A GPU has it in 32 banks, and neighbouring words of 32 bits are in
// neighbouring banks; in one turn each bank gives one word, to all lanes that want it. The kernel is compiled with
// -fsanitize=thread, whose calls at each read and write, meant for finding data races, end here.

#include "on_cpu.h"

#include <ucontext.h>

#include <functional>
#include <map>
#include <set>
#include <vector>

constexpr int LANES = 32, BANKS = 32, STACK = 1 << 16;  // bytes

struct Access {
    long word;  // of shared memory, the first one
    int words;  // neighbours that are read or written at once: 1, 2 or 4
};

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    Index index;
    int line;       // at which it waits; 0: it has ended
    float offered;  // to other lanes
    std::vector<Access> accesses;
};

Index threadIdx, blockIdx, gridDim;
static std::vector<Thread> threads;
static Thread *running;
static ucontext_t rounds;
static std::function<void()> body;  // of a thread

void wait_for_all(int line) {
    running->line = line;
    swapcontext(&running->context, &rounds);
}

float exchange(float value, int from_lane, int line) {
    running->offered = value;
    wait_for_all(line);
    const float other = (running - running->index.x + from_lane)->offered;
    wait_for_all(line);  // all have read before one offers again
    return other;
}

static void run_thread() {
    body();
    running->line = 0;
}

// Run a block of 32 x warps threads. Return whether all of them took the same way: waited at the same lines, and those
// of a warp made as many accesses. backwards: the last thread goes first.
static bool run_block(int warps, bool backwards) {
    const int count = LANES * warps;
    threads = std::vector<Thread>(count);
    for (int i = 0; i < count; i++) {
        Thread &thread = threads[i];
        thread.index = {i % LANES, i / LANES};
        thread.stack.resize(STACK);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack.data();
        thread.context.uc_stack.ss_size = STACK;
        thread.context.uc_link = &rounds;
        makecontext(&thread.context, run_thread, 0);
    }
    do {
        for (int i = 0; i < count; i++) {
            running = &threads[backwards ? count - 1 - i : i];
            threadIdx = running->index;
            swapcontext(&rounds, &running->context);
        }
        for (const Thread &thread : threads)
            if (thread.line != threads[0].line) return false;
    } while (threads[0].line);
    for (int i = 0; i < count; i++)
        if (threads[i].accesses.size() != threads[i - i % LANES].accesses.size()) return false;
    return true;
}

// Return the turns of one access by a warp. Of longer words fewer lanes are served at once: 16 of two, 8 of four.
static int turns_of(const Thread *warp, size_t access) {
    int turns = 0;
    const int together = LANES / warp->accesses[access].words;
    for (int first = 0; first < LANES; first += together) {
        std::map<long, std::set<long>> wanted;  // words, by bank
        for (int lane = first; lane < first + together; lane++) {
            const Access &one = warp[lane].accesses[access];
            for (long word = one.word; word < one.word + one.words; word++) wanted[word % BANKS].insert(word);
        }
        size_t most = 0;
        for (const auto &bank : wanted) most = std::max(most, bank.second.size());
        turns += most;
    }
    return turns;
}

extern char __start_shared_memory[], __stop_shared_memory[];  // the linker's names for the ends of the section

static void touch(void *address, int bytes) {
    const long offset = (char *)address - __start_shared_memory;
    const bool shared = offset >= 0 && address < __stop_shared_memory;
    if (shared) running->accesses.push_back({offset / 4, std::max(bytes / 4, 1)});
}

extern "C" {
#define REPORTED(bytes)                                                  \
    void __tsan_read##bytes(void *address) { touch(address, bytes); }    \
    void __tsan_write##bytes(void *address) { touch(address, bytes); }
REPORTED(1) REPORTED(2) REPORTED(4) REPORTED(8) REPORTED(16)
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

// Launch H_kv x B blocks; return whether the threads of each took the same way. counts: accesses of warps to shared
// memory, the turns that bank conflicts cost them, and the most that they cost one.
bool launch(
    const unsigned *q, const unsigned *k, const unsigned *v, const int *tables, const int *lengths, float *out,
    int table_stride, int H_kv, int B, int warps, bool backwards, long *counts) {
    body = [=] { decode(q, k, v, tables, lengths, out, table_stride); };
    gridDim = {H_kv, B};
    for (int block = 0; block < H_kv * B; block++) {
        blockIdx = {block % H_kv, block / H_kv};
        memset(__start_shared_memory, 0xff, __stop_shared_memory - __start_shared_memory);  // no number in any type
        if (!run_block(warps, backwards)) return false;
        for (int warp = 0; warp < warps; warp++) {
            const Thread *first = &threads[LANES * warp];
            for (size_t access = 0; access < first->accesses.size(); access++) {
                const long lost = turns_of(first, access) - first->accesses[access].words;
                counts[0] += 1;
                counts[1] += lost;
                counts[2] = std::max(counts[2], lost);
            }
        }
    }
    return true;
}
}
