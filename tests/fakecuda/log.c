/* Totals, the trace, and calls that are told to fail; read by tests through fakecuda_totals and fakecuda_fail.
 *
 *   FAKECUDA_LOG=file    totals at exit, appended        FAKECUDA_TRACE=file  one line per event, appended
 *   FAKECUDA_FAIL=name:n the n-th call of cudaMalloc, launch, copy or sync fails, and those after it; name:n:k only k of them
 */
#include "fakecuda.h"
#include <stdarg.h>
#include <unistd.h>

struct totals N;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local cudaError_t last_error;
static FILE *trace_file;
static struct { char name[32]; long first, count, seen; } failing;

void trace(const char *format, ...) {
    if (!trace_file) return;
    va_list list;
    va_start(list, format);
    pthread_mutex_lock(&lock);
    vfprintf(trace_file, format, list);
    pthread_mutex_unlock(&lock);
    va_end(list);
}

void flush_trace(void) { if (trace_file) fflush(trace_file); }

cudaError_t fault(cudaError_t error, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    N.faults++;
    fprintf(stderr, "fakecuda: FAULT %s\n", text);
    trace("FAULT %s\n", text);
    return last_error = error;
}

cudaError_t fail(cudaError_t error) { return last_error = error; }

/* 0: the default stream, as null, cudaStreamLegacy (1) or cudaStreamPerThread (2) */
long stream_number(cudaStream_t stream) { return (uintptr_t)stream > 2 ? ((long *)stream)[1] : 0; }

int told_to_fail(const char *what) {
    if (!failing.first || strcmp(what, failing.name)) return 0;
    long seen = __sync_add_and_fetch(&failing.seen, 1);
    return seen >= failing.first && seen < failing.first + failing.count;
}

API void fakecuda_fail(const char *text) { /* counted from now on; an empty text: nothing fails any more */
    failing.first = failing.seen = 0, failing.count = 1L << 60;
    if (text && sscanf(text, "%31[^:]:%ld:%ld", failing.name, &failing.first, &failing.count) < 2) failing.first = 0;
}

API void fakecuda_once(const char *name) { /* called by the generated stubs, which hold a flag each */
    fprintf(stderr, "fakecuda: %s is not implemented, returns 0\n", name);
    trace("STUB %s\n", name);
}
API void fakecuda_gemm(const char *name) { __sync_fetch_and_add(&N.gemms, 1); trace("G %s\n", name); }
API void fakecuda_mark(const char *text) { trace("MARK %s\n", text); flush_trace(); }

/* kernels, products, copies and bytes to the device, copies and bytes to the host, copies on it, synchronizations,
 * allocations, frees, live and peak bytes, faults, launches of graphs */
API void fakecuda_totals(long long *out) {
    long long values[] = {N.launches, N.gemms, N.h2d, N.h2d_bytes, N.d2h, N.d2h_bytes, N.d2d,
                          N.stream_sync + N.device_sync + N.event_sync, N.malloc, N.free, N.live, N.peak, N.faults,
                          N.graph_launches};
    memcpy(out, values, sizeof values);
}
API void fakecuda_reset_peak(void) { N.peak = N.live; }

static void report(void) {
    const char *path = getenv("FAKECUDA_LOG");
    flush_trace();
    FILE *out = path ? fopen(path, "a") : 0;
    if (!out) return;
    fprintf(out, "pid %d launches %ld (default stream %ld) gemms %ld h2d %ld/%lld d2h %ld/%lld d2d %ld/%lld memset %ld "
            "malloc %ld free %ld hostalloc %ld live %lld peak %lld stream_sync %ld device_sync %ld event_sync %ld faults %ld\n",
            getpid(), N.launches, N.default_stream_launches, N.gemms, N.h2d, N.h2d_bytes, N.d2h, N.d2h_bytes, N.d2d,
            N.d2d_bytes, N.memset, N.malloc, N.free, N.hostalloc, N.live, N.peak, N.stream_sync, N.device_sync,
            N.event_sync, N.faults);
    report_kernels(out);
    fclose(out);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAKECUDA_TRACE");
    if (path) trace_file = fopen(path, "a");
    fakecuda_fail(getenv("FAKECUDA_FAIL"));
    atexit(report);
}
