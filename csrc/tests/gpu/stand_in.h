// A stand-in for the CUDA driver and NCCL, in host memory, so that the transport of GPUs is tested without one.
//
// A stream is a thread that runs late and at random. The ranks of a communicator may live in several processes: they
// meet in a folder of files. Wrong use ends the process with a sentence: a wait for an event that nobody recorded, an
// event or a communicator on a stream of another context, another order of collectives on a rank, a buffer that two
// streams use with no event between.
//
// The last is found when work is enqueued, not when it runs, so that it is found every time: each stream has a vector
// clock, an event carries the clock of its stream, and a wait or a query that succeeds takes it over.

#ifndef EPL_TESTS_GPU_STAND_IN_H_
#define EPL_TESTS_GPU_STAND_IN_H_

#include <functional>
#include <string>
#include <vector>

#include "comm/nccl_api.h"

namespace gpu_stand_in {

// A range of memory that a piece of work reads or writes.
struct Access {
  const void* begin;
  size_t bytes;
  bool writes;
};

// Makes GPU number `gpu` current in this thread.
void UseGpu(int gpu);
// Number of the GPU that is current; ends the process if none is.
int CurrentGpu();
// A stream of the GPU that is current.
epl::gpu::Stream MakeStream();
// Enqueues work; ends the process if an access has no order with an earlier one of another stream.
void Enqueue(epl::gpu::Stream stream, const std::string& what, const std::vector<Access>& accesses,
             std::function<void()> work);
// The GPU of a stream.
int GpuOf(epl::gpu::Stream stream);
// How many collectives of NCCL were enqueued, over all ranks.
int NumCollectives();
// The environment variable that names the folder of boards.
constexpr const char* kBoards = "TEST_GPU_BOARDS";
// From now on nothing arrives in this process, and NCCL says so when it is asked for asynchronous errors.
void BreakNetwork();
constexpr int kRemoteError = 6;  // ncclRemoteError
// Names of what was made and not freed: "2 events, 1 streams"; empty if nothing.
std::string Leaks();
// Counts a thing of `kind` that is made (1) or freed (-1).
void Count(const std::string& kind, int by);
// Says what was wrong and ends the process with this code.
constexpr int kMisuseExitCode = 86;
[[noreturn]] void Misuse(const std::string& what);

}  // namespace gpu_stand_in

#endif  // EPL_TESTS_GPU_STAND_IN_H_
