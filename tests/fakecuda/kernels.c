/* Kernels: launches are checked against the limits of the device, counted, and do nothing. */
#include "fakecuda.h"

static struct kernel *kernels; /* open addressing by host function */
static size_t kernel_room, kernel_count;

struct kernel *kernel_of(const void *function) {
    if (2 * kernel_count >= kernel_room) {
        struct kernel *old = kernels;
        size_t room = kernel_room;
        kernels = calloc(kernel_room = room ? 2 * room : 1 << 16, sizeof *kernels);
        for (size_t i = 0; i < room; i++)
            if (old[i].function) *kernel_of(old[i].function) = old[i];
        free(old);
    }
    size_t at = ((uint64_t)function * 0x9E3779B97F4A7C15ull) >> 20;
    for (;; at++) {
        struct kernel *k = kernels + (at & (kernel_room - 1));
        if (k->function == function) return k;
        if (!k->function) { k->function = function; return k; }
    }
}

API void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API void __cudaRegisterVar(void **h, char *v, char *a, const char *n, int e, size_t s, int c, int g) {}
API void __cudaRegisterFunction(void **handle, const char *function, char *device, const char *name, int limit, void *a,
                                void *b, void *c, void *d, int *e) {
    pthread_mutex_lock(&lock);
    struct kernel *k = kernel_of(function);
    if (!k->name) kernel_count++;
    k->name = name;
    pthread_mutex_unlock(&lock);
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (told_to_fail("launch")) return fail(cudaErrorLaunchFailure);
    pthread_mutex_lock(&lock);
    struct kernel *k = kernel_of(function);
    pthread_mutex_unlock(&lock);
    const char *name = k->name ? k->name : "?";
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535 || (uint64_t)block.x * block.y * block.z > 1024 || block.z > 64)
        return fault(cudaErrorInvalidConfiguration, "launch of %s: grid %u %u %u, block %u %u %u", name, grid.x, grid.y,
                     grid.z, block.x, block.y, block.z);
    if (shared > 49152 && (long)shared > k->shared)
        return fault(cudaErrorInvalidValue, "launch of %s: %zu bytes of shared memory, allowed %ld", name, shared, k->shared);
    __sync_fetch_and_add(&k->launches, 1);
    __sync_fetch_and_add(&N.launches, 1);
    if (!stream_number(stream)) __sync_fetch_and_add(&N.default_stream_launches, 1);
    trace("K %s %u,%u,%u %u,%u,%u %zu s%ld\n", name, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
          stream_number(stream));
    return 0;
}

static _Thread_local struct { dim3 grid, block; size_t shared; cudaStream_t stream; } configuration;
API unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t shared, struct CUstream_st *stream) {
    configuration.grid = g, configuration.block = b, configuration.shared = shared, configuration.stream = stream;
    return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *shared, void *stream) {
    *g = configuration.grid, *b = configuration.block, *shared = configuration.shared;
    *(cudaStream_t *)stream = configuration.stream;
    return 0;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) { *kernel = (cudaKernel_t)function; return 0; }
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t shared, cudaStream_t s) {
    return launch(k, g, b, shared, s);
}
API cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, cudaStream_t s) {
    return launch(f, g, b, shared, s);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 g, dim3 b, void **a, size_t shared, cudaStream_t s) {
    return launch(f, g, b, shared, s);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) {
    return launch(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) { f(data); return 0; }
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024, a->numRegs = 64, a->binaryVersion = a->ptxVersion = compute_capability;
    a->maxDynamicSharedSizeBytes = 49152;
    return 0;
}
API cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int value) {
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize) return 0;
    if (value > (compute_capability == 90 || compute_capability == 100 ? 232448 : compute_capability == 80 ? 166912 : 101376)) return fail(cudaErrorInvalidValue);
    kernel_of(f)->shared = value;
    return 0;
}
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute a, int value, int device) {
    return cudaFuncSetAttribute(k, a, value);
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared,
                                                                       unsigned flags) {
    int by_threads = 2048 / (block > 0 ? block : 1), by_shared = 233472 / (shared + 1024);
    *n = by_threads < by_shared ? by_threads : by_shared;
    if (*n > 32) *n = 32;
    return 0;
}
API cudaError_t cudaLibraryLoadData(cudaLibrary_t *l, const void *code, enum cudaJitOption *o, void **ov, unsigned no,
                                    enum cudaLibraryOption *p, void **pv, unsigned np) {
    *l = malloc(8);
    trace("STUB cudaLibraryLoadData\n");
    return 0;
}
API cudaError_t cudaLibraryGetKernel(cudaKernel_t *k, cudaLibrary_t l, const char *name) {
    struct kernel *made = kernel_of(*k = malloc(8));
    made->name = strdup(name);
    return 0;
}

void report_kernels(FILE *out) {
    for (size_t i = 0; i < kernel_room; i++)
        if (kernels[i].launches) fprintf(out, "  %8ld %s\n", kernels[i].launches, kernels[i].name ? kernels[i].name : "?");
}
