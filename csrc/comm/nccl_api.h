// The few functions of NCCL and of the CUDA driver that are used, declared here so that building needs neither, and
// found at run time, so that one build serves machines with and without a GPU. tests/nccl_headers.cc holds these
// declarations against the real headers.
//
// The driver's API rather than the runtime's: its library is the same for every CUDA version, while a process may hold
// several runtimes (TensorFlow's, NCCL's own).

#ifndef EPL_COMM_NCCL_API_H_
#define EPL_COMM_NCCL_API_H_

#include <stddef.h>

namespace epl {
namespace gpu {

// ---- CUDA driver. Results are 0 for success.
using Context = struct CUctx_st*;
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;
using DeviceAddress = unsigned long long;  // CUdeviceptr
constexpr int kNotReady = 600;
constexpr unsigned kEventDisableTiming = 2;
constexpr unsigned kStreamNonBlocking = 1;

// ---- NCCL.
using Comm = struct ncclComm*;
struct UniqueId {
  char bytes[128];
};
enum RedOp { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };
enum DataType {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
constexpr int kScalarHostImmediate = 1;

// X(result, name in the library, parameters)
#define EPL_CUDA_FUNCTIONS(X)                                                  \
  X(int, cuCtxGetCurrent, (Context*))                                          \
  X(int, cuCtxSetCurrent, (Context))                                           \
  X(int, cuStreamCreate, (Stream*, unsigned))                                  \
  X(int, cuStreamDestroy_v2, (Stream))                                         \
  X(int, cuStreamWaitEvent, (Stream, Event, unsigned))                         \
  X(int, cuEventCreate, (Event*, unsigned))                                    \
  X(int, cuEventRecord, (Event, Stream))                                       \
  X(int, cuEventQuery, (Event))                                                \
  X(int, cuEventDestroy_v2, (Event))                                           \
  X(int, cuMemAlloc_v2, (DeviceAddress*, size_t))                              \
  X(int, cuMemFree_v2, (DeviceAddress))                                        \
  X(int, cuMemcpyDtoDAsync_v2, (DeviceAddress, DeviceAddress, size_t, Stream)) \
  X(int, cuGetErrorString, (int, const char**))

#define EPL_NCCL_FUNCTIONS(X)                                                     \
  X(int, ncclGetUniqueId, (UniqueId*))                                            \
  X(int, ncclCommInitRank, (Comm*, int, UniqueId, int))                           \
  X(int, ncclCommDestroy, (Comm))                                                 \
  X(int, ncclCommAbort, (Comm))                                                   \
  X(int, ncclCommGetAsyncError, (Comm, int*))                                     \
  X(const char*, ncclGetErrorString, (int))                                       \
  X(int, ncclRedOpCreatePreMulSum, (int*, void*, int, int, Comm))                 \
  X(int, ncclRedOpDestroy, (int, Comm))                                           \
  X(int, ncclAllReduce, (const void*, void*, size_t, int, int, Comm, Stream))     \
  X(int, ncclReduce, (const void*, void*, size_t, int, int, int, Comm, Stream))   \
  X(int, ncclBroadcast, (const void*, void*, size_t, int, int, Comm, Stream))     \
  X(int, ncclAllGather, (const void*, void*, size_t, int, Comm, Stream))          \
  X(int, ncclReduceScatter, (const void*, void*, size_t, int, int, Comm, Stream)) \
  X(int, ncclSend, (const void*, size_t, int, int, Comm, Stream))                 \
  X(int, ncclRecv, (void*, size_t, int, int, Comm, Stream))                       \
  X(int, ncclGroupStart, ())                                                      \
  X(int, ncclGroupEnd, ())

struct Api {
#define EPL_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  EPL_CUDA_FUNCTIONS(EPL_DECLARE)
  EPL_NCCL_FUNCTIONS(EPL_DECLARE)
#undef EPL_DECLARE
};

}  // namespace gpu
}  // namespace epl

#endif  // EPL_COMM_NCCL_API_H_
