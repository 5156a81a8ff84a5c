/* Device memory: a sparse memfd mapped twice. At the addresses that callers get it is PROT_NONE, so that any access by the
 * host is a segmentation fault; copies go through the other mapping, and are checked: inside one live allocation,
 * direction as declared, pitches.
 *
 *   FAKECUDA_MEMORY=GiB  size of the device (24)      FAKECUDA_NOISE=1   copies to the host of zeros become noise
 *   FAKECUDA_STRICT=0    device memory readable by the host
 */
#include "fakecuda.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096ull

struct block { uint64_t start, size, pages; };
static struct block *blocks;
static long block_count, block_room;
uint64_t device_size;
static uint64_t device_base, alias_base;
static int noise, strict = 1;
static int memory_fd;

__attribute__((constructor)) static void start(void) {
    const char *text;
    device_size = ((text = getenv("FAKECUDA_MEMORY")) ? strtod(text, 0) : 24) * (1ull << 30);
    device_size &= ~(PAGE - 1);
    if ((text = getenv("FAKECUDA_STRICT"))) strict = atoi(text);
    if ((text = getenv("FAKECUDA_NOISE"))) noise = atoi(text);
    memory_fd = memfd_create("fakecuda", MFD_CLOEXEC);
    if (memory_fd < 0 || ftruncate(memory_fd, 2 * device_size)) { perror("fakecuda: memfd"); abort(); }
    int protection = strict ? PROT_NONE : PROT_READ | PROT_WRITE; /* twice the size: guards cost addresses only */
    void *device = mmap(0, 2 * device_size, protection, MAP_SHARED | MAP_NORESERVE, memory_fd, 0);
    void *alias = mmap(0, 2 * device_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory_fd, 0);
    if (device == MAP_FAILED || alias == MAP_FAILED) { perror("fakecuda: mmap"); abort(); }
    device_base = (uint64_t)device, alias_base = (uint64_t)alias;
}

static int on_device(const void *p) { return (uint64_t)p - device_base < 2 * device_size; }

static long find(uint64_t address) { /* last block that starts at or before the address, or -1 */
    long low = 0, high = block_count;
    while (low < high) {
        long middle = (low + high) / 2;
        if (blocks[middle].start <= address) low = middle + 1; else high = middle;
    }
    return low - 1;
}

static cudaError_t allocate(void **p, size_t size, const char *how) {
    if (is_capturing(0)) return fault(cudaErrorStreamCaptureUnsupported, "%s while a graph is captured", how);
    if (told_to_fail("cudaMalloc")) return fail(cudaErrorMemoryAllocation);
    if (!size) { *p = 0; return 0; }
    uint64_t pages = (size + PAGE - 1) & ~(PAGE - 1), place = device_base;
    pthread_mutex_lock(&lock);
    if (N.live + (long long)size > (long long)device_size) {
        pthread_mutex_unlock(&lock);
        trace("OOM %zu\n", size);
        return fail(cudaErrorMemoryAllocation);
    }
    long index = 0;
    for (; index < block_count; index++) { /* first fit, with a page between neighbours */
        if (blocks[index].start >= place + pages + PAGE) break;
        place = blocks[index].start + blocks[index].pages + PAGE;
    }
    if (place + pages > device_base + 2 * device_size) { pthread_mutex_unlock(&lock); return fail(cudaErrorMemoryAllocation); }
    if (block_count == block_room) blocks = realloc(blocks, (block_room = block_room * 2 + 64) * sizeof *blocks);
    memmove(blocks + index + 1, blocks + index, (block_count++ - index) * sizeof *blocks);
    blocks[index] = (struct block){place, size, pages};
    N.malloc++, N.live += size;
    if (N.live > N.peak) N.peak = N.live;
    pthread_mutex_unlock(&lock);
    *p = (void *)place;
    trace("A %s %zu %p\n", how, size, *p);
    return 0;
}

static cudaError_t release(void *p) {
    if (!p) return 0;
    pthread_mutex_lock(&lock);
    long index = find((uint64_t)p);
    if (index < 0 || blocks[index].start != (uint64_t)p) {
        pthread_mutex_unlock(&lock);
        return fault(cudaErrorInvalidValue, "cudaFree(%p): not an allocation", p);
    }
    fallocate(memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (uint64_t)p - device_base, blocks[index].pages);
    N.free++, N.live -= blocks[index].size;
    memmove(blocks + index, blocks + index + 1, (--block_count - index) * sizeof *blocks);
    pthread_mutex_unlock(&lock);
    trace("F %p\n", p);
    return 0;
}

/* where the host may touch `span` bytes at p; 0 if p is device memory without a live allocation around them */
static char *reach(const void *p, uint64_t span) {
    if (!on_device(p)) return (char *)p;
    pthread_mutex_lock(&lock);
    long index = find((uint64_t)p);
    int inside = index >= 0 && (uint64_t)p + span <= blocks[index].start + blocks[index].size;
    pthread_mutex_unlock(&lock);
    return inside ? (char *)(alias_base + ((uint64_t)p - device_base)) : 0;
}

static void make_noise(char *target, size_t size) {
    static uint64_t state = 88172645463325252ull;
    if (!noise || size < 256) return;
    for (size_t i = 0; i < size; i++) if (target[i]) return;
    for (size_t i = 0; i < size; i++) { /* every pair or four of these bytes is a finite float in any float type */
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        target[i] = (state >> 32) & 0x3f;
    }
}

static cudaError_t copy(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                        size_t height, enum cudaMemcpyKind kind, cudaStream_t stream, const char *how) {
    static const char *names[] = {"H2H", "H2D", "D2H", "D2D"};
    if (told_to_fail("copy")) return fail(cudaErrorIllegalAddress);
    if (!width || !height) return 0;
    if (height > 1 && (width > target_pitch || width > source_pitch))
        return fault(cudaErrorInvalidPitchValue, "%s: width %zu, pitches %zu, %zu", how, width, target_pitch, source_pitch);
    int actual = on_device(target) + 2 * on_device(source);
    if (kind != cudaMemcpyDefault && kind != actual)
        return fault(cudaErrorInvalidValue, "%s: declared %s, is %s", how, names[kind], names[actual]);
    char *to = reach(target, target_pitch * (height - 1) + width);
    const char *from = reach(source, source_pitch * (height - 1) + width);
    if (!to || !from)
        return fault(cudaErrorInvalidValue, "%s %s: %zu x %zu bytes leave the allocation (%s)", how, names[actual], height,
                     width, to ? "source" : "target");
    size_t bytes = width * height;
    for (size_t line = 0; line < height; line++)
        memmove(to + line * target_pitch, from + line * source_pitch, width);
    if (actual == 2 && height == 1) make_noise(to, width);
    long *counts[] = {&N.h2h, &N.h2d, &N.d2h, &N.d2d};
    __sync_fetch_and_add(counts[actual], 1);
    if (actual) __sync_fetch_and_add((&N.h2d_bytes) + (actual - 1), (long long)bytes);
    trace("C %s %zu %s s%ld\n", names[actual], bytes, how, stream_number(stream));
    return 0;
}

static cudaError_t set(void *p, int value, size_t size, cudaStream_t stream) {
    char *to = reach(p, size);
    if (!size) return 0;
    if (!to || !on_device(p)) return fault(cudaErrorInvalidValue, "cudaMemset(%p, %zu): not inside an allocation", p, size);
    memset(to, value, size);
    N.memset++;
    trace("S %zu s%ld\n", size, stream_number(stream));
    return 0;
}

API cudaError_t cudaMalloc(void **p, size_t n) { return allocate(p, n, "cudaMalloc"); }
API cudaError_t cudaMallocFromPoolAsync(void **p, size_t n, cudaMemPool_t m, cudaStream_t s) { return allocate(p, n, "pool"); }
API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) { return allocate(p, n, "async"); }
API cudaError_t cudaFree(void *p) { return release(p); }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return release(p); }
API cudaError_t cudaMallocHost(void **p, size_t n) { N.hostalloc++; return posix_memalign(p, PAGE, n ? n : 1) ? fail(2) : 0; }
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned f) { return cudaMallocHost(p, n); }
API cudaError_t cudaFreeHost(void *p) { free(p); return 0; }
API cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = device_size, *available = device_size - N.live;
    return 0;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    memset(a, 0, sizeof *a);
    a->type = on_device(p) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    a->devicePointer = a->hostPointer = 0;
    if (on_device(p)) a->devicePointer = (void *)p; else a->device = -2;
    return 0;
}
API cudaError_t cudaMemcpy(void *t, const void *s, size_t n, enum cudaMemcpyKind k) {
    return copy(t, n, s, n, n, 1, k, 0, "cudaMemcpy");
}
API cudaError_t cudaMemcpyAsync(void *t, const void *s, size_t n, enum cudaMemcpyKind k, cudaStream_t q) {
    return copy(t, n, s, n, n, 1, k, q, "cudaMemcpyAsync");
}
API cudaError_t cudaMemcpy2D(void *t, size_t tp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k) {
    return copy(t, tp, s, sp, w, h, k, 0, "cudaMemcpy2D");
}
API cudaError_t cudaMemcpy2DAsync(void *t, size_t tp, const void *s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k,
                                  cudaStream_t q) {
    return copy(t, tp, s, sp, w, h, k, q, "cudaMemcpy2DAsync");
}
API cudaError_t cudaMemcpyFromSymbol(void *t, const void *symbol, size_t n, size_t offset, enum cudaMemcpyKind k) {
    memset(t, 0, n);
    return 0;
}
API cudaError_t cudaMemset(void *p, int v, size_t n) { return set(p, v, n, 0); }
API cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) { return set(p, v, n, s); }
API cudaError_t cudaMemPoolCreate(cudaMemPool_t *m, const struct cudaMemPoolProps *q) { *m = malloc(8); return 0; }
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t m, enum cudaMemPoolAttr a, void *v) { *(uint64_t *)v = 0; return 0; }

