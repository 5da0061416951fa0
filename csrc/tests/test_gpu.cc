// Order between streams: buffers that a collective takes from, or gives to, the stream of its rank. tests/gpu has the
// stand-in for CUDA and NCCL; it ends the process where two streams use memory with no event between.

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "tests/check.h"
#include "tests/client.h"
#include "tests/gpu/stand_in.h"

extern "C" {
int cuEventCreate(epl::gpu::Event*, unsigned);
int cuEventRecord(epl::gpu::Event, epl::gpu::Stream);
int cuStreamWaitEvent(epl::gpu::Stream, epl::gpu::Event, unsigned);
}

namespace epl_test {
namespace {

using epl::gpu::Stream;

// A collective of float32 by rows whose output is memory that the rank's stream is still to write.
struct LateCall {
  std::vector<float> input, output;
  std::vector<const void*> inputs;
  std::vector<int64_t> counts, splits;
  std::string key;
  epl_collective args = {};
  Stream stream = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  int code = -1;
  std::string message;

  void Submit(epl_communicator* communicator, int rank, int ranks, epl_kind kind, int64_t rows) {
    gpu_stand_in::UseGpu(rank);
    stream = gpu_stand_in::MakeStream();
    input.assign(rows, static_cast<float>(rank + 1));
    output.assign(rows * ranks, -1);
    inputs = {input.data()};
    counts = {rows};
    splits.assign(ranks, rows / ranks);
    key = "late";
    args.kind = kind;
    args.dtype = EPL_FLOAT32;
    args.key = key.c_str();
    args.num_buffers = 1;
    args.inputs = inputs.data();
    args.counts = counts.data();
    args.scale = 1;
    args.row_elements = 1;
    args.row_splits = splits.data();
    args.stream = stream;
    epl_submit(communicator, rank, &args, Allocate, Done, this);
  }

  int Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return code >= 0; });
    return code;
  }

  // As an allocator of TensorFlow does: hands out memory that work on the stream is to write before.
  static void* Allocate(void* context, const int64_t*, int) {
    LateCall* call = static_cast<LateCall*>(context);
    float* memory = call->output.data();
    const size_t count = call->output.size();
    gpu_stand_in::Enqueue(call->stream, "an older kernel", {{memory, count * sizeof(float), true}}, [memory, count] {
      Sleep(0.05);
      std::fill(memory, memory + count, -2.f);
    });
    return memory;
  }

  static void Done(void* context, int code, const char* message) {
    LateCall* call = static_cast<LateCall*>(context);
    std::lock_guard<std::mutex> lock(call->mutex);
    call->message = message == nullptr ? "" : message;
    call->code = code;
    call->changed.notify_all();
  }
};

void RunLate(epl_kind kind) {
  const int ranks = 2;
  const int64_t rows = 6;
  Options options = MakeOptions(1);
  RunProcesses(1, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(1, ranks), "nccl");
    std::vector<std::unique_ptr<LateCall>> calls;
    for (int rank = 0; rank < ranks; ++rank) {
      calls.emplace_back(new LateCall);
      calls.back()->Submit(communicator, rank, ranks, kind, rows);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_WORDS(calls[rank]->Wait() == EPL_OK, calls[rank]->message);
      const std::vector<float>& output = calls[rank]->output;
      const int64_t written = kind == EPL_ALL_GATHER ? rows * ranks : kind == EPL_ALL_TO_ALL ? rows : rows / ranks;
      for (int64_t i = 0; i < written; ++i) {
        const float expected = kind == EPL_REDUCE_SCATTER ? 3.f : i < written / 2 ? 1.f : 2.f;
        CHECK(output[i] == expected);
      }
    }
  });
}

}  // namespace

TEST(gpu_late_output_all_gather) { RunLate(EPL_ALL_GATHER); }
TEST(gpu_late_output_reduce_scatter) { RunLate(EPL_REDUCE_SCATTER); }
TEST(gpu_late_output_all_to_all) { RunLate(EPL_ALL_TO_ALL); }

// An input that queued work is yet to make is waited for, and the result is there when `done` says so.
TEST(gpu_input_in_the_making) {
  Options options = MakeOptions(1);
  RunProcesses(1, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(1, 2), "nccl");
    std::vector<std::vector<float>> data(2, std::vector<float>(1000, -1));
    std::vector<std::unique_ptr<Call>> calls;
    for (int rank = 0; rank < 2; ++rank) {
      gpu_stand_in::UseGpu(rank);
      Stream stream = gpu_stand_in::MakeStream();
      std::vector<float>* own = &data[rank];
      gpu_stand_in::Enqueue(stream, "a kernel", {{own->data(), own->size() * sizeof(float), true}}, [own, rank] {
        Sleep(0.05);
        std::fill(own->begin(), own->end(), rank + 1.f);
      });
      calls.push_back(Sum("made", own));
      calls.back()->args.stream = stream;
      calls.back()->Submit(communicator, rank);
    }
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_WORDS(calls[rank]->Wait() == EPL_OK, calls[rank]->message);
      for (float value : data[rank]) CHECK(value == 3);
    }
  });
}

namespace {

// Sums `num` buffers of `count` floats over 2 ranks; returns how many collectives that took on each.
int SumMany(int num, int64_t count) {
  Options options = MakeOptions(1);
  Job job(options, 0);
  epl_communicator* communicator = job.Make("world", Even(1, 2), "nccl");
  std::vector<std::vector<std::vector<float>>> data(2);
  std::vector<std::unique_ptr<Call>> calls;
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < num; ++i) data[rank].emplace_back(count, static_cast<float>(rank + i));
    std::unique_ptr<Call> call = Sum("many", &data[rank][0]);
    for (int i = 1; i < num; ++i) {
      call->inputs.push_back(data[rank][i].data());
      call->outputs.push_back(data[rank][i].data());
      call->counts.push_back(count);
    }
    gpu_stand_in::UseGpu(rank);
    call->args.stream = gpu_stand_in::MakeStream();
    call->Submit(communicator, rank);
    calls.push_back(std::move(call));
  }
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_WORDS(calls[rank]->Wait() == EPL_OK, calls[rank]->message);
    for (int i = 0; i < num; ++i) {
      for (float value : data[rank][i]) CHECK(value == 2 * i + 1);
    }
  }
  return gpu_stand_in::NumCollectives() / 2;
}

}  // namespace

// Small buffers travel together, 8 MiB at a time; large ones go as they are.
TEST(gpu_small_buffers_travel_together) {
  RunProcesses(1, [](int) { CHECK(SumMany(100, 10000) == 1); });
  RunProcesses(1, [](int) { CHECK(SumMany(200, 30000) == 3); });
  RunProcesses(1, [](int) { CHECK(SumMany(3, 100000) == 3); });
}

// What NCCL reports of its own accord fails the collective, and those behind it, whose kernels end without a result.
TEST(gpu_asynchronous_error) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    Job job(options, process);
    epl_communicator* communicator = job.Make("world", Even(2, 1), "nccl");
    CHECK(SumOnce(communicator, {process}, "g", 1000) == EPL_OK);
    if (process == 0) gpu_stand_in::BreakNetwork();
    std::vector<std::vector<float>> data(50, std::vector<float>(1000, 1));
    std::vector<std::unique_ptr<Call>> calls;
    for (auto& values : data) {
      calls.push_back(Sum("broken", &values));
      calls.back()->Submit(communicator, process);
    }
    for (auto& call : calls) {
      const int code = call->Wait(5);
      // Process 1 has all that process 0 posted before.
      CHECK_WORDS(code == EPL_INTERNAL || (process == 1 && code == EPL_OK), call->message);
      if (process == 0) CHECK_HAS(call->message, "NCCL: an error of the stand-in while running a collective");
    }
    Sleep(0.2);
    std::string message;
    CHECK(SumOnce(communicator, {process}, "after", 4, &message) == EPL_INTERNAL);
    CHECK_HAS(message, "NCCL: an error of the stand-in");
  });
}

// A rank that cannot allocate its output ends the job: the others have enqueued their part.
TEST(gpu_allocation_refused) {
  Options options = MakeOptions(2);
  RunProcesses(2, [&](int process) {
    std::unique_ptr<Job> job(new Job(options, process));
    epl_communicator* communicator = job->Make("world", Even(2, 1), "nccl");
    CHECK(SumOnce(communicator, {process}, "g", 1000) == EPL_OK);
    float data[4] = {1, 2, 3, 4};
    Call call;
    call.key = "gather";
    call.inputs = {data};
    call.counts = {4};
    call.args.kind = EPL_ALL_GATHER;
    call.args.dtype = EPL_FLOAT32;
    call.args.row_elements = 2;
    call.args.scale = 1;
    call.refuse_allocation = process == 1;
    call.Submit(communicator, process);
    CHECK(call.Wait(5) == EPL_INTERNAL);
    CHECK_HAS(call.message, "no memory");
    job.reset();
    CHECK_WORDS(gpu_stand_in::Leaks() == "1 streams", gpu_stand_in::Leaks());  // the rank's own
  });
}

// The stand-in's own word: two streams that use memory with no event between end the process.
TEST(gpu_stand_in_finds_a_race) {
  for (const bool ordered : {true, false}) {
    const pid_t pid = fork();
    if (pid == 0) {
      gpu_stand_in::UseGpu(0);
      Stream first = gpu_stand_in::MakeStream(), second = gpu_stand_in::MakeStream();
      float memory[4] = {};
      epl::gpu::Event event = nullptr;
      cuEventCreate(&event, epl::gpu::kEventDisableTiming);
      gpu_stand_in::Enqueue(first, "one kernel", {{memory, sizeof(memory), true}}, [] {});
      cuEventRecord(event, first);
      if (ordered) cuStreamWaitEvent(second, event, 0);
      gpu_stand_in::Enqueue(second, "another kernel", {{memory, sizeof(memory), false}}, [] {});
      _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (ordered ? 0 : gpu_stand_in::kMisuseExitCode));
  }
}

}  // namespace epl_test
