/* What the parts of fakecuda share: totals, the trace, faults, and calls that are told to fail. */
#pragma once
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

struct totals {
    long launches, gemms, h2d, d2h, d2d, h2h, memset, malloc, free, hostalloc, stream_sync, device_sync, event_sync;
    long default_stream_launches, faults, graph_launches;
    long long h2d_bytes, d2h_bytes, d2d_bytes, live, peak;
};
extern struct totals N;
extern pthread_mutex_t lock;
extern uint64_t device_size;
extern int compute_capability;
extern _Thread_local cudaError_t last_error;

struct kernel { const void *function; const char *name; long launches, shared; };
struct kernel *kernel_of(const void *function);
void report_kernels(FILE *out);

void trace(const char *format, ...);
void flush_trace(void);
cudaError_t fault(cudaError_t error, const char *format, ...);
cudaError_t fail(cudaError_t error);
int told_to_fail(const char *what);
long stream_number(cudaStream_t stream);
int is_capturing(cudaStream_t stream);
