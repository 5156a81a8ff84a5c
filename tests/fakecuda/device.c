/* The device, its streams, events and graphs.
 *
 *   FAKECUDA_CC=90       compute capability
 */
#include "fakecuda.h"
#include <dlfcn.h>
#include <time.h>

int compute_capability = 90;
static cudaStream_t capturing; /* the stream whose launches become a graph, or null */

__attribute__((constructor)) static void start(void) {
    const char *text = getenv("FAKECUDA_CC");
    if (text) compute_capability = atoi(text);
}

/* whether this stream is captured; of the default stream: whether any is */
int is_capturing(cudaStream_t stream) { return capturing && (!stream || stream == capturing); }

API cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return 0; }
API cudaError_t cudaGetDevice(int *device) { *device = 0; return 0; }
API cudaError_t cudaSetDevice(int device) { return device ? fault(cudaErrorInvalidDevice, "cudaSetDevice(%d)", device) : 0; }
API cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
API cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Fake H200");
    p->totalGlobalMem = device_size, p->sharedMemPerBlock = 49152, p->regsPerBlock = 65536, p->warpSize = 32;
    p->memPitch = 2147483647, p->maxThreadsPerBlock = 1024, p->totalConstMem = 65536;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = compute_capability / 10, p->minor = compute_capability % 10, p->textureAlignment = 512, p->texturePitchAlignment = 32;
    p->multiProcessorCount = 132, p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = 1;
    p->asyncEngineCount = 3, p->unifiedAddressing = 1, p->memoryBusWidth = 6144, p->l2CacheSize = 62914560;
    p->persistingL2CacheMaxSize = 39321600, p->maxThreadsPerMultiProcessor = 2048, p->streamPrioritiesSupported = 1;
    p->globalL1CacheSupported = p->localL1CacheSupported = 1, p->sharedMemPerMultiprocessor = 233472;
    p->regsPerMultiprocessor = 65536, p->managedMemory = p->concurrentManagedAccess = p->cooperativeLaunch = 1;
    p->computePreemptionSupported = p->canUseHostPointerForRegisteredMem = 1, p->sharedMemPerBlockOptin = 232448;
    p->maxBlocksPerMultiProcessor = 32, p->reservedSharedMemPerBlock = 1024, p->hostRegisterSupported = 1;
    p->memoryPoolsSupported = p->clusterLaunch = p->unifiedFunctionPointers = 1, p->hostNumaId = -1;
    return 0;
}
API cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device) {
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch (a) {
        case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
        case cudaDevAttrWarpSize: *v = 32; break;
        case cudaDevAttrMaxRegistersPerBlock: *v = 65536; break;
        case cudaDevAttrMultiProcessorCount: *v = p.multiProcessorCount; break;
        case cudaDevAttrL2CacheSize: *v = p.l2CacheSize; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
        case cudaDevAttrComputeCapabilityMajor: *v = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *v = p.minor; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = p.sharedMemPerMultiprocessor; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *v = 65536; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = p.sharedMemPerBlockOptin; break;
        case cudaDevAttrCooperativeLaunch: case cudaDevAttrMemoryPoolsSupported: *v = 1; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *v = 32; break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *v = 1024; break;
        case cudaDevAttrClockRate: *v = 1980000; break;
        case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
        case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *v = 65535; break;
        case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *v = 1024; break;
        case cudaDevAttrMaxBlockDimZ: *v = 64; break;
        default: *v = 0; trace("STUB cudaDeviceGetAttribute %d\n", a);
    }
    return 0;
}
static cudaError_t handle(void *p) { *(void **)p = calloc(1, 16); return 0; }
static cudaError_t stream_handle(void *p, unsigned flags) { /* its second word is the number that traces show */
    static long streams;
    handle(p);
    (*(long **)p)[1] = __sync_add_and_fetch(&streams, 1);
    trace("STREAM %ld flags %u\n", streams, flags);
    return 0;
}
static cudaError_t synchronize(long *count, const char *what, long stream) {
    if (told_to_fail("sync")) return fail(cudaErrorIllegalAddress);
    if (capturing) return fault(cudaErrorStreamCaptureUnsupported, "a synchronization (%s) while a graph is captured", what);
    __sync_fetch_and_add(count, 1);
    trace("Y %s s%ld\n", what, stream);
    return 0;
}
API cudaError_t cudaDeviceSynchronize(void) { return synchronize(&N.device_sync, "device", 0); }
API cudaError_t cudaStreamSynchronize(cudaStream_t s) { return synchronize(&N.stream_sync, "stream", stream_number(s)); }
API cudaError_t cudaEventSynchronize(cudaEvent_t e) { return synchronize(&N.event_sync, "event", 0); }
API cudaError_t cudaStreamCreate(cudaStream_t *s) { return stream_handle(s, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return stream_handle(s, flags); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) { if ((uintptr_t)s > 2) free(s); return 0; }
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    *status = is_capturing(s) && s ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return 0;
}
API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    if (capturing) return fault(cudaErrorStreamCaptureUnsupported, "a capture inside a capture");
    capturing = s;
    trace("CAPTURE s%ld\n", stream_number(s));
    return 0;
}
API cudaError_t cudaEventCreate(cudaEvent_t *e) { return handle(e); }
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { return handle(e); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) { free(e); return 0; }
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (e) *(double *)e = t.tv_sec * 1e3 + t.tv_nsec / 1e6;
    return 0;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return cudaEventRecord(e, s); }
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = *(double *)b - *(double *)a;
    if (*ms <= 0) *ms = 1e-3f;
    return 0;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    if (s != capturing) return fault(cudaErrorStreamCaptureUnmatched, "the end of a capture that did not begin");
    capturing = 0;
    trace("CAPTURED s%ld\n", stream_number(s));
    return handle(g);
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    if (told_to_fail("launch")) return fail(cudaErrorLaunchFailure);
    __sync_fetch_and_add(&N.graph_launches, 1);
    trace("L graph s%ld\n", stream_number(s));
    return 0;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t g) { free(g); return 0; }
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) { free(e); return 0; }
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f) { return handle(e); }
API cudaError_t cudaGetLastError(void) { cudaError_t e = last_error; last_error = 0; return e; }
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API const char *cudaGetErrorName(cudaError_t e) { return e == 2 ? "cudaErrorMemoryAllocation" : e ? "cudaErrorFake" : "cudaSuccess"; }
API const char *cudaGetErrorString(cudaError_t e) {
    static _Thread_local char text[64];
    snprintf(text, sizeof text, e == 2 ? "out of memory" : "fake CUDA error %d", (int)e);
    return text;
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **f, unsigned version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *status) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *f = driver ? dlsym(driver, symbol) : 0;
    trace("ENTRY %s %s\n", symbol, *f ? "found" : "missing");
    if (status) *status = *f ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return 0;
}

