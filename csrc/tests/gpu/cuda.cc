// The stand-in's CUDA driver: contexts, streams, events, and the detector of races between streams.

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "tests/gpu/stand_in.h"

namespace epl {
namespace gpu {

struct CUctx_st {
  int gpu;
};

}  // namespace gpu
}  // namespace epl

namespace gpu_stand_in {
namespace {

// By stream: how much of its work is known to come before.
using Clock = std::map<int, int64_t>;

void Merge(Clock* into, const Clock& from) {
  for (const auto& each : from) (*into)[each.first] = std::max((*into)[each.first], each.second);
}

// One use of a range of memory.
struct Use {
  uintptr_t begin, end;
  bool writes;
  int stream;
  int64_t tick;
  std::string what;
};

std::mutex& Lock() {
  static std::mutex* lock = new std::mutex;
  return *lock;
}
Clock host_clock;       // work whose end this process has seen
std::vector<Use> uses;  // those that not all later work is known to follow
std::map<std::string, int> counts;
int last_stream = 0;
thread_local epl::gpu::CUctx_st* current = nullptr;

}  // namespace
}  // namespace gpu_stand_in

using gpu_stand_in::Clock;
using gpu_stand_in::Lock;

namespace epl {
namespace gpu {

struct CUevent_st {
  // Numbers of records: the last one that was asked for, and the last one that was reached. Streams may come to it
  // after the event was destroyed, as the driver allows.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int64_t asked = 0, reached = 0;
  };
  CUctx_st* context = nullptr;
  bool recorded = false;
  Clock clock;
  std::shared_ptr<State> state = std::make_shared<State>();
};

struct CUstream_st {
  explicit CUstream_st(CUctx_st* its_context) : context(its_context), number(++gpu_stand_in::last_stream) {
    thread = std::thread([this] { Run(); });
  }
  ~CUstream_st() {
    Push(nullptr);
    thread.join();
  }

  void Push(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_all();
  }

  void Run() {
    std::mt19937 random(number);
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return !queue.empty(); });
      std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
      work();
    }
  }

  CUctx_st* const context;
  const int number;
  Clock clock;  // under Lock()
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::thread thread;
};

}  // namespace gpu
}  // namespace epl

namespace gpu_stand_in {

using epl::gpu::Context;
using epl::gpu::Event;
using epl::gpu::Stream;

void Misuse(const std::string& what) {
  fprintf(stderr, "misuse of the GPU: %s\n", what.c_str());
  fflush(stderr);
  _exit(kMisuseExitCode);
}

void Count(const std::string& kind, int by) {
  std::lock_guard<std::mutex> lock(Lock());
  counts[kind] += by;
}

std::string Leaks() {
  std::lock_guard<std::mutex> lock(Lock());
  std::string text;
  for (const auto& each : counts) {
    if (each.second != 0) text += (text.empty() ? "" : ", ") + std::to_string(each.second) + " " + each.first;
  }
  return text;
}

void UseGpu(int gpu) {
  static epl::gpu::CUctx_st contexts[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
  current = &contexts[gpu];
}

int CurrentGpu() {
  if (current == nullptr) Misuse("no GPU is current");
  return current->gpu;
}

int GpuOf(Stream stream) { return stream->context->gpu; }

static void NoteUse(Stream stream, const std::string& what, const Access& access) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(access.begin);
  const Use now = {begin, begin + access.bytes, access.writes, stream->number, stream->clock[stream->number], what};
  for (const Use& before : uses) {
    const bool overlap = before.begin < now.end && now.begin < before.end;
    if (!overlap || (!before.writes && !now.writes) || before.tick <= stream->clock[before.stream]) continue;
    Misuse(what + (now.writes ? " writes" : " reads") + " memory that " + before.what + " of another stream " +
           (before.writes ? "writes" : "reads") + ", with no event between");
  }
  uses.push_back(now);
}

void Enqueue(Stream stream, const std::string& what, const std::vector<Access>& accesses, std::function<void()> work) {
  std::lock_guard<std::mutex> lock(Lock());
  // Whatever the host has seen to end is before all that it enqueues from now on.
  Merge(&stream->clock, host_clock);
  uses.erase(
      std::remove_if(uses.begin(), uses.end(), [](const Use& use) { return use.tick <= host_clock[use.stream]; }),
      uses.end());
  ++stream->clock[stream->number];
  for (const Access& access : accesses) NoteUse(stream, what, access);
  stream->Push(std::move(work));
}

Stream MakeStream() {
  CurrentGpu();
  Count("streams", 1);
  std::lock_guard<std::mutex> lock(Lock());
  return new epl::gpu::CUstream_st(current);
}

}  // namespace gpu_stand_in

using namespace gpu_stand_in;  // what follows is the driver's own interface

extern "C" {

int cuCtxGetCurrent(Context* context) {
  *context = current;
  return 0;
}
int cuCtxSetCurrent(Context context) {
  current = context;
  return 0;
}
int cuStreamCreate(Stream* stream, unsigned) {
  *stream = MakeStream();
  return 0;
}
int cuStreamDestroy_v2(Stream stream) {
  delete stream;
  Count("streams", -1);
  return 0;
}
int cuEventCreate(Event* event, unsigned) {
  CurrentGpu();
  *event = new epl::gpu::CUevent_st;
  (*event)->context = current;
  Count("events", 1);
  return 0;
}
int cuEventRecord(Event event, Stream stream) {
  if (event->context != stream->context) Misuse("an event is recorded on a stream of another context");
  std::lock_guard<std::mutex> lock(Lock());
  event->recorded = true;
  event->clock = stream->clock;
  int64_t number;
  std::shared_ptr<epl::gpu::CUevent_st::State> state = event->state;
  {
    std::lock_guard<std::mutex> own(state->mutex);
    number = ++state->asked;
  }
  stream->Push([state, number] {
    std::lock_guard<std::mutex> own(state->mutex);
    state->reached = number;
    state->changed.notify_all();
  });
  return 0;
}
int cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  std::lock_guard<std::mutex> lock(Lock());
  if (!event->recorded) Misuse("a stream waits for an event that was not recorded");
  Merge(&stream->clock, event->clock);
  std::shared_ptr<epl::gpu::CUevent_st::State> state = event->state;
  std::lock_guard<std::mutex> own(state->mutex);
  const int64_t number = state->asked;
  stream->Push([state, number] {
    std::unique_lock<std::mutex> own(state->mutex);
    state->changed.wait(own, [&] { return state->reached >= number; });
  });
  return 0;
}
int cuEventQuery(Event event) {
  std::lock_guard<std::mutex> lock(Lock());
  std::lock_guard<std::mutex> own(event->state->mutex);
  if (event->state->reached < event->state->asked) return epl::gpu::kNotReady;
  Merge(&host_clock, event->clock);
  return 0;
}
int cuEventDestroy_v2(Event event) {
  delete event;
  Count("events", -1);
  return 0;
}
int cuMemAlloc_v2(epl::gpu::DeviceAddress* address, size_t bytes) {
  CurrentGpu();
  *address = reinterpret_cast<uintptr_t>(malloc(bytes));
  Count("buffers", 1);
  return 0;
}
int cuMemFree_v2(epl::gpu::DeviceAddress address) {
  free(reinterpret_cast<void*>(static_cast<uintptr_t>(address)));
  Count("buffers", -1);
  return 0;
}
int cuMemcpyDtoDAsync_v2(epl::gpu::DeviceAddress to, epl::gpu::DeviceAddress from, size_t bytes, Stream stream) {
  void* target = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  const void* source = reinterpret_cast<const void*>(static_cast<uintptr_t>(from));
  Enqueue(stream, "a copy", {{source, bytes, false}, {target, bytes, true}}, [=] { memcpy(target, source, bytes); });
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "an error of the stand-in";
  return 0;
}

}  // extern "C"
