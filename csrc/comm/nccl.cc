// Collectives on GPU buffers by NCCL.
//
// Every process has passed the gate before anything is enqueued, so no kernel ever waits on the GPU for a process that
// does not come. A collective waits, on a stream of its own, for the event that its rank recorded when it submitted, so
// that it overlaps whatever that rank computes next; a thread sees its end.
//
//   rank's stream   ..compute.. (ready) ..compute that does not need the result..
//   our stream                    \--- all_reduce --- (end)  -> done
//
// An output that is allocated when all ranks are known may be memory that work on the rank's stream still uses. Its
// collective waits for what is enqueued there at that time, not only for what was when it was submitted.
//
// Not over slots, hence not in the order of the ranks: NCCL chooses the order of a sum, the same on every rank.

#include "comm/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "comm/nccl_api.h"
#include "comm/reduce.h"
#include "comm/wire.h"

namespace epl {
namespace {

using gpu::Api;
using gpu::Comm;
using gpu::Event;
using gpu::Stream;

// The libraries, opened once.
class Libraries {
 public:
  static const Libraries& Get() {
    static const Libraries* libraries = new Libraries;
    return *libraries;
  }
  const Api& api() const { return api_; }
  const std::string& why_not() const { return why_not_; }

 private:
  Libraries() {
    void* cuda = Open("libcuda.so.1", "an NVIDIA driver");
    void* nccl = Open("libnccl.so.2",
                      "NCCL 2.11 or newer (apt-get install libnccl2, or pip install nvidia-nccl-cu11 and its "
                      "folder in LD_LIBRARY_PATH)");
    if (!why_not_.empty()) return;
#define EPL_FIND(library, name)                                             \
  api_.name = reinterpret_cast<decltype(api_.name)>(dlsym(library, #name)); \
  if (api_.name == nullptr) why_not_ = "its library is too old: it has no function " #name;
#define EPL_FIND_CUDA(result, name, parameters) EPL_FIND(cuda, name)
#define EPL_FIND_NCCL(result, name, parameters) EPL_FIND(nccl, name)
    EPL_CUDA_FUNCTIONS(EPL_FIND_CUDA)
    EPL_NCCL_FUNCTIONS(EPL_FIND_NCCL)
#undef EPL_FIND_CUDA
#undef EPL_FIND_NCCL
#undef EPL_FIND
  }

  void* Open(const char* name, const char* what) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      why_not_ += std::string(why_not_.empty() ? "" : ", ") + "needs " + what + ": " + name + " cannot be opened here";
    }
    return library;
  }

  Api api_;
  std::string why_not_;
};

int DataTypeOf(epl_dtype dtype) {
  switch (dtype) {
    case EPL_UINT8:
      return gpu::kUint8;
    case EPL_INT8:
      return gpu::kInt8;
    case EPL_INT32:
      return gpu::kInt32;
    case EPL_INT64:
      return gpu::kInt64;
    case EPL_FLOAT16:
      return gpu::kFloat16;
    case EPL_FLOAT32:
      return gpu::kFloat32;
    case EPL_FLOAT64:
      return gpu::kFloat64;
    case EPL_BFLOAT16:
      return gpu::kBfloat16;
  }
  return -1;
}

int RedOpOf(epl_reduce_op op) {
  static const int ops[] = {gpu::kSum, gpu::kProd, gpu::kMin, gpu::kMax};
  return ops[op];
}

// The float16 or bfloat16 nearest to `value`, as bits.
uint16_t HalfBits(epl_dtype dtype, double value) {
  // Reduce() converts while it scales: 1 * value in that dtype.
  const uint16_t one = dtype == EPL_FLOAT16 ? 0x3c00 : 0x3f80;
  uint16_t result = 0;
  const void* source = &one;
  Reduce(dtype, EPL_SUM, &result, &source, &value, 1, 1);
  return result;
}

// Buffers of a fused collective that are shorter than kSmallBytes travel together, packed into one buffer of
// kPackBytes: each collective costs the latency of a ring, a copy on the device some microseconds. 100 buffers of 40 KB
// between 2 ranks took 262 ms, one of 4 MB 5.3 ms (NCCL over sockets).
constexpr int64_t kSmallBytes = 256 << 10;
constexpr int64_t kPackBytes = 8 << 20;

// Runs of small buffers that fit into one pack, by index; a buffer that is large, or alone in its run, is in none. The
// same on every rank, whose counts are equal.
std::vector<std::vector<int>> MakePacks(const epl_collective& args) {
  std::vector<std::vector<int>> packs;
  if (args.kind != EPL_ALL_REDUCE && args.kind != EPL_REDUCE && args.kind != EPL_BROADCAST) return packs;
  const int64_t element = SizeOf(args.dtype);
  std::vector<int> pack;
  int64_t packed = 0;
  auto close = [&] {
    if (pack.size() > 1) packs.push_back(pack);
    pack.clear();
    packed = 0;
  };
  for (int i = 0; i < args.num_buffers; ++i) {
    const int64_t bytes = args.counts[i] * element;
    if (bytes == 0 || bytes >= kSmallBytes) continue;
    if (packed + bytes > kPackBytes) close();
    pack.push_back(i);
    packed += bytes;
  }
  close();
  return packs;
}

// What submitting left in a request.
struct Ready {
  Event event = nullptr;
  gpu::Context context = nullptr;
};

class NcclTransport : public DeviceTransport {
 public:
  NcclTransport(Job* job, const Members& members, const gpu::UniqueId& id)
      : api_(Libraries::Get().api()), job_(job), members_(members), id_(id), ranks_(members.local_ranks().size()) {
    watcher_ = std::thread([this] { Watch(); });
  }

  ~NcclTransport() override {
    Drain();
    for (Rank& rank : ranks_) {
      if (rank.context == nullptr) continue;
      api_.cuCtxSetCurrent(rank.context);
      if (rank.comm != nullptr && Aborted().ok()) api_.ncclCommDestroy(rank.comm);
      if (rank.pack != 0) api_.cuMemFree_v2(rank.pack);
      api_.cuStreamDestroy_v2(rank.stream);
    }
  }

  const char* name() const override { return "nccl"; }

  void Drain() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
  }

  Status Prepare(Request* request) override {
    std::unique_ptr<Ready> ready(new Ready);
    int error = api_.cuCtxGetCurrent(&ready->context);
    if (error == 0 && ready->context == nullptr) {
      return Status(EPL_INVALID_ARGUMENT, Format("rank %d, %s: no GPU is current in the submitting thread",
                                                 request->rank, Label(request->args).c_str()));
    }
    if (error == 0) error = api_.cuEventCreate(&ready->event, gpu::kEventDisableTiming);
    request->event = ready.release();
    if (error == 0) error = MarkReady(*request);
    if (error != 0) return CudaError(error, "marking the inputs");
    return Status();
  }

  void Discard(Request* request) override {
    std::unique_ptr<Ready> ready(static_cast<Ready*>(request->event));
    request->event = nullptr;
    if (ready != nullptr && ready->event != nullptr) api_.cuEventDestroy_v2(ready->event);
  }

  Status Run(const Op& op, const std::vector<Announcement>& all, std::function<void(const Status&)> finished) override {
    std::lock_guard<std::mutex> using_comms(comms_mutex_);
    Status status = Aborted();
    if (!status.ok()) return status;
    status = Connect(op);
    std::vector<std::pair<int, Comm>> scalings;
    if (status.ok()) status = Allocate(op, all);
    if (status.ok()) status = Enqueue(op, all, &scalings);
    for (auto& scaling : scalings) api_.ncclRedOpDestroy(scaling.first, scaling.second);
    Flight flight;
    flight.finished = std::move(finished);
    for (size_t i = 0; status.ok() && i < ranks_.size(); ++i) {
      api_.cuCtxSetCurrent(ranks_[i].context);
      Event end = nullptr;
      int error = api_.cuEventCreate(&end, gpu::kEventDisableTiming);
      if (error == 0) error = api_.cuEventRecord(end, ranks_[i].stream);
      if (error != 0) status = CudaError(error, "marking the end");
      flight.ends.push_back(end);
    }
    if (!status.ok()) {
      job_->Abort(status.message());  // the others have enqueued their part and would wait for ever
      for (Event end : flight.ends) api_.cuEventDestroy_v2(end);
      if (connected_) AbortComms(status);
      return status;
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      flights_.push_back(std::move(flight));
    }
    changed_.notify_all();
    return Status();
  }

 private:
  struct Rank {
    gpu::Context context = nullptr;
    Stream stream = nullptr;
    Comm comm = nullptr;
    uint8_t* output = nullptr;
    gpu::DeviceAddress pack = 0;  // kPackBytes, used on `stream` alone
  };
  struct Flight {
    std::vector<Event> ends;  // by local rank
    std::function<void(const Status&)> finished;
  };

  Status CudaError(int error, const char* during) const {
    const char* text = nullptr;
    api_.cuGetErrorString(error, &text);
    return Status(EPL_INTERNAL, Format("CUDA: %s while %s", text == nullptr ? "unknown error" : text, during));
  }
  Status NcclError(int error, const char* during) const {
    return Status(EPL_INTERNAL, Format("NCCL: %s while %s", api_.ncclGetErrorString(error), during));
  }

  // Marks on the rank's own stream that all that is enqueued there by now comes before the collective. A second mark
  // takes the place of the first.
  int MarkReady(const Request& request) {
    const Ready& ready = *static_cast<Ready*>(request.event);
    const int error = api_.cuCtxSetCurrent(ready.context);
    return error != 0 ? error : api_.cuEventRecord(ready.event, static_cast<Stream>(request.args.stream));
  }

  // With the first collective, when every rank's GPU is known and every process is here.
  Status Connect(const Op& op) {
    if (connected_) return Status();
    int error = api_.ncclGroupStart();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].context = static_cast<Ready*>(op.requests[i]->event)->context;
      api_.cuCtxSetCurrent(ranks_[i].context);
      int cuda = api_.cuStreamCreate(&ranks_[i].stream, gpu::kStreamNonBlocking);
      // Here, where NCCL allocates as well: later the driver could wait for collectives that are under way.
      if (cuda == 0) cuda = api_.cuMemAlloc_v2(&ranks_[i].pack, kPackBytes);
      if (cuda != 0) {
        api_.ncclGroupEnd();
        return CudaError(cuda, "making a stream, and the 8 MiB in which small tensors travel together");
      }
      if (error == 0) error = api_.ncclCommInitRank(&ranks_[i].comm, members_.size(), id_, op.requests[i]->rank);
    }
    const int end = api_.ncclGroupEnd();
    if (error == 0) error = end;
    if (error != 0) return NcclError(error, "connecting the ranks");
    connected_ = true;
    return Status();
  }

  int64_t RowsOf(const std::vector<Announcement>& all, int source, int target) const {
    const int member = members_.member_of(source);
    const std::vector<int>& ranks = members_.ranks_of[member];
    const size_t index = std::find(ranks.begin(), ranks.end(), source) - ranks.begin();
    return target < 0 ? all[member].rows[index] : all[member].rows[index * members_.size() + target];
  }
  // all_gather: rows of each rank if all have as many, else -1.
  int64_t EqualRows(const std::vector<Announcement>& all) const {
    const int64_t first = RowsOf(all, 0, -1);
    for (int rank = 1; rank < members_.size(); ++rank) {
      if (RowsOf(all, rank, -1) != first) return -1;
    }
    return first;
  }
  int64_t PartOf(const Op& op, int rank) const {
    const epl_collective& args = op.args();
    const int64_t rows = args.row_elements > 0 ? args.counts[0] / args.row_elements : 0;
    return rows / members_.size() + (rank < rows % members_.size() ? 1 : 0);
  }

  Status Allocate(const Op& op, const std::vector<Announcement>& all) {
    const epl_kind kind = op.args().kind;
    if (kind != EPL_ALL_GATHER && kind != EPL_REDUCE_SCATTER && kind != EPL_ALL_TO_ALL) return Status();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Request* request = op.requests[i];
      std::vector<int64_t> rows;
      int64_t total = 0;
      if (kind == EPL_REDUCE_SCATTER) {
        rows.push_back(PartOf(op, request->rank));
      } else {
        for (int source = 0; source < members_.size(); ++source) {
          rows.push_back(RowsOf(all, source, kind == EPL_ALL_GATHER ? -1 : request->rank));
        }
      }
      for (int64_t count : rows) total += count;
      ranks_[i].output =
          static_cast<uint8_t*>(request->allocate(request->context, rows.data(), static_cast<int>(rows.size())));
      if (ranks_[i].output == nullptr && total * request->args.row_elements > 0) {
        return Status(EPL_INTERNAL, Format("rank %d, %s: no memory for an output of %lld rows", request->rank,
                                           Label(request->args).c_str(), static_cast<long long>(total)));
      }
      // Work that is enqueued on the rank's stream may still use this memory: the mark of Prepare moves behind it.
      const int error = MarkReady(*request);
      if (error != 0) return CudaError(error, "marking an output");
    }
    return Status();
  }

  Status Enqueue(const Op& op, const std::vector<Announcement>& all, std::vector<std::pair<int, Comm>>* scalings) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      api_.cuCtxSetCurrent(ranks_[i].context);
      int error = api_.cuStreamWaitEvent(ranks_[i].stream, static_cast<Ready*>(op.requests[i]->event)->event, 0);
      if (error != 0) return CudaError(error, "waiting for the inputs");
    }
    std::vector<int> reductions(ranks_.size(), RedOpOf(op.args().reduce_op));
    for (size_t i = 0; i < ranks_.size(); ++i) {
      Status status = Scaling(*op.requests[i], ranks_[i].comm, &reductions[i], scalings);
      if (!status.ok()) return status;
    }
    std::vector<bool> packed(op.args().num_buffers, false);
    for (const std::vector<int>& pack : MakePacks(op.args())) {
      Status status = EnqueuePack(op, pack, reductions);
      if (!status.ok()) return status;
      for (int buffer : pack) packed[buffer] = true;
    }
    int error = api_.ncclGroupStart();
    for (size_t i = 0; error == 0 && i < ranks_.size(); ++i) error = EnqueueRank(op, all, i, reductions[i], packed);
    const int end = api_.ncclGroupEnd();
    if (error == 0) error = end;
    return error == 0 ? Status() : NcclError(error, "starting a collective");
  }

  // One collective for several small buffers: copied into the pack, moved, copied out. All on the stream of the
  // transport, so that the next pack finds the buffer free.
  Status EnqueuePack(const Op& op, const std::vector<int>& pack, const std::vector<int>& reductions) {
    int64_t total = 0;
    for (int buffer : pack) total += op.args().counts[buffer];
    for (size_t i = 0; i < ranks_.size(); ++i) {
      api_.cuCtxSetCurrent(ranks_[i].context);
      const epl_collective& args = op.requests[i]->args;
      const bool sends = args.kind != EPL_BROADCAST || op.requests[i]->rank == args.root;
      const int error = sends ? CopyPack(args, pack, ranks_[i], true) : 0;
      if (error != 0) return CudaError(error, "packing small tensors");
    }
    int error = api_.ncclGroupStart();
    for (size_t i = 0; error == 0 && i < ranks_.size(); ++i) {
      void* buffer = reinterpret_cast<void*>(static_cast<uintptr_t>(ranks_[i].pack));
      error = EnqueueFused(op.requests[i]->args, buffer, buffer, total, reductions[i], ranks_[i]);
    }
    const int end = api_.ncclGroupEnd();
    if (error == 0) error = end;
    if (error != 0) return NcclError(error, "starting a collective of small tensors");
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const epl_collective& args = op.requests[i]->args;
      if (args.kind == EPL_REDUCE && op.requests[i]->rank != args.root) continue;
      api_.cuCtxSetCurrent(ranks_[i].context);
      error = CopyPack(args, pack, ranks_[i], false);
      if (error != 0) return CudaError(error, "unpacking small tensors");
    }
    return Status();
  }

  // Copies inputs into the pack of a rank, or the pack into outputs.
  int CopyPack(const epl_collective& args, const std::vector<int>& pack, const Rank& rank, bool in) {
    gpu::DeviceAddress at = rank.pack;
    int error = 0;
    for (int buffer : pack) {
      const int64_t bytes = args.counts[buffer] * SizeOf(args.dtype);
      const gpu::DeviceAddress own = reinterpret_cast<uintptr_t>(in ? args.inputs[buffer] : args.outputs[buffer]);
      if (error == 0) error = api_.cuMemcpyDtoDAsync_v2(in ? at : own, in ? own : at, bytes, rank.stream);
      at += bytes;
    }
    return error;
  }

  int EnqueueFused(const epl_collective& args, const void* input, void* output, int64_t count, int reduction,
                   const Rank& rank) {
    const int type = DataTypeOf(args.dtype);
    if (args.kind == EPL_ALL_REDUCE) {
      return api_.ncclAllReduce(input, output, count, type, reduction, rank.comm, rank.stream);
    }
    if (args.kind == EPL_REDUCE) {
      return api_.ncclReduce(input, output, count, type, reduction, args.root, rank.comm, rank.stream);
    }
    return api_.ncclBroadcast(input, output, count, type, args.root, rank.comm, rank.stream);
  }

  // A reduction that multiplies this rank's input first.
  Status Scaling(const Request& request, Comm comm, int* reduction, std::vector<std::pair<int, Comm>>* scalings) {
    const epl_collective& args = request.args;
    const bool reduces = args.kind == EPL_ALL_REDUCE || args.kind == EPL_REDUCE || args.kind == EPL_REDUCE_SCATTER;
    if (!reduces || !IsFloating(args.dtype) || args.reduce_op != EPL_SUM) {
      if (reduces && IsFloating(args.dtype) && args.scale != 1) {
        return Status(EPL_UNIMPLEMENTED,
                      Format("rank %d, %s: on GPUs only sums can be scaled", request.rank, Label(args).c_str()));
      }
      return Status();
    }
    // Also where the factor is 1: NCCL wants the same kind of operator on every rank, and another's may not be 1.
    double f64 = args.scale;
    float f32 = static_cast<float>(args.scale);
    uint16_t half = 0;
    void* scalar = &half;
    if (args.dtype == EPL_FLOAT64) {
      scalar = &f64;
    } else if (args.dtype == EPL_FLOAT32) {
      scalar = &f32;
    } else {
      half = HalfBits(args.dtype, args.scale);
    }
    int error =
        api_.ncclRedOpCreatePreMulSum(reduction, scalar, DataTypeOf(args.dtype), gpu::kScalarHostImmediate, comm);
    if (error != 0) return NcclError(error, "making a scaled sum");
    scalings->emplace_back(*reduction, comm);
    return Status();
  }

  // `packed` are the buffers that have travelled in a pack.
  int EnqueueRank(const Op& op, const std::vector<Announcement>& all, size_t local, int reduction,
                  const std::vector<bool>& packed) {
    const epl_collective& args = op.requests[local]->args;
    const Rank& rank = ranks_[local];
    const int own = op.requests[local]->rank;
    const int type = DataTypeOf(args.dtype);
    const int64_t element = SizeOf(args.dtype);
    const int64_t row = args.row_elements;
    int error = 0;
    switch (args.kind) {
      case EPL_ALL_REDUCE:
      case EPL_REDUCE:
      case EPL_BROADCAST:
        for (int i = 0; error == 0 && i < args.num_buffers; ++i) {
          if (args.counts[i] == 0 || packed[i]) continue;
          error = EnqueueFused(args, args.inputs[i], args.outputs[i], args.counts[i], reduction, rank);
        }
        return error;
      case EPL_ALL_GATHER: {
        const int64_t each = EqualRows(all);
        if (each > 0) {
          return api_.ncclAllGather(args.inputs[0], rank.output, each * row, type, rank.comm, rank.stream);
        }
        int64_t at = 0;
        for (int source = 0; error == 0 && source < members_.size(); ++source) {
          const int64_t count = RowsOf(all, source, -1) * row;
          uint8_t* to = rank.output + at * element;
          if (count > 0)
            error = api_.ncclBroadcast(source == own ? args.inputs[0] : to, to, count, type, source, rank.comm,
                                       rank.stream);
          at += count;
        }
        return error;
      }
      case EPL_REDUCE_SCATTER: {
        if (args.counts[0] > 0 && args.counts[0] % (row * members_.size()) == 0) {
          return api_.ncclReduceScatter(args.inputs[0], rank.output, args.counts[0] / members_.size(), type, reduction,
                                        rank.comm, rank.stream);
        }
        int64_t at = 0;
        for (int target = 0; error == 0 && target < members_.size(); ++target) {
          const int64_t count = PartOf(op, target) * row;
          const uint8_t* from = static_cast<const uint8_t*>(args.inputs[0]) + at * element;
          if (count > 0)
            error = api_.ncclReduce(from, target == own ? rank.output : nullptr, count, type, reduction, target,
                                    rank.comm, rank.stream);
          at += count;
        }
        return error;
      }
      case EPL_ALL_TO_ALL: {
        int64_t sent = 0, received = 0;
        for (int other = 0; error == 0 && other < members_.size(); ++other) {
          const int64_t out = args.row_splits[other] * row;
          const int64_t in = RowsOf(all, other, own) * row;
          if (out > 0)
            error = api_.ncclSend(static_cast<const uint8_t*>(args.inputs[0]) + sent * element, out, type, other,
                                  rank.comm, rank.stream);
          if (error == 0 && in > 0)
            error = api_.ncclRecv(rank.output + received * element, in, type, other, rank.comm, rank.stream);
          sent += out;
          received += in;
        }
        return error;
      }
    }
    return error;
  }

  // The thread that sees collectives end, in the order in which they were enqueued.
  void Watch() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !flights_.empty(); });
      if (flights_.empty()) return;
      Flight flight = std::move(flights_.front());
      flights_.pop_front();
      lock.unlock();
      Status status;
      for (size_t i = 0; i < flight.ends.size(); ++i) {
        if (status.ok()) status = AwaitEnd(ranks_[i], flight.ends[i]);
        api_.cuEventDestroy_v2(flight.ends[i]);
      }
      flight.finished(status);
      lock.lock();
    }
  }

  Status Aborted() {
    std::lock_guard<std::mutex> lock(aborted_mutex_);
    return aborted_;
  }

  Status AwaitEnd(const Rank& rank, Event end) {
    api_.cuCtxSetCurrent(rank.context);
    const double start = Now();
    for (int round = 0;; ++round) {
      int error = api_.cuEventQuery(end);
      if (error == 0) return Aborted();  // an aborted kernel ends as well, without a result
      if (error != gpu::kNotReady) return CudaError(error, "running a collective");
      if (round < 100) {
        std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      int failure = 0;
      Status failed = Aborted();
      if (!failed.ok()) return failed;
      failed = job_->Failure({}, -1);
      if (failed.code() != EPL_INTERNAL) failed = Status();
      if (failed.ok() && api_.ncclCommGetAsyncError(rank.comm, &failure) == 0 && failure != 0) {
        failed = NcclError(failure, "running a collective");
      }
      if (failed.ok() && job_->timeout_s() > 0 && Now() - start > job_->timeout_s()) {
        failed = Status(EPL_DEADLINE_EXCEEDED,
                        "a collective did not end on the GPU within " + Seconds(job_->timeout_s()) + " s");
      }
      if (failed.ok()) continue;
      job_->Abort(failed.message());
      // A thread that is enqueueing is let finish, unless NCCL holds it: aborting is what frees it.
      std::unique_lock<std::mutex> using_comms(comms_mutex_, std::defer_lock);
      for (const double since = Now(); !using_comms.try_lock() && Now() - since < 1;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      AbortComms(failed);
      return failed;
    }
  }

  // Ends the kernels of all collectives that are under way, and frees the communicators.
  void AbortComms(const Status& why) {
    {
      std::lock_guard<std::mutex> lock(aborted_mutex_);
      if (!aborted_.ok()) return;
      aborted_ = why;
    }
    for (Rank& each : ranks_) api_.ncclCommAbort(each.comm);
  }

  const Api& api_;
  Job* const job_;
  const Members& members_;
  const gpu::UniqueId id_;
  std::vector<Rank> ranks_;  // by local rank
  bool connected_ = false;
  std::mutex comms_mutex_;  // enqueueing against aborting
  std::mutex aborted_mutex_;
  Status aborted_;  // why the communicators were aborted

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::deque<Flight> flights_;
  std::thread watcher_;
};

}  // namespace

std::string WhyNoNccl() { return Libraries::Get().why_not(); }

Status MakeNccl(Job* job, const Members& members, const std::string& name, std::unique_ptr<DeviceTransport>* device) {
  const Libraries& libraries = Libraries::Get();
  std::string failure = libraries.why_not();
  gpu::UniqueId id = {};
  if (failure.empty() && members.self == 0) {
    int error = libraries.api().ncclGetUniqueId(&id);
    if (error != 0) failure = libraries.api().ncclGetErrorString(error);
  }
  StallWatch watch(job, members.processes, -1, job->NameOf(job->process()), "NCCL of communicator '" + name + "'");
  std::vector<std::string> all;
  Status status =
      job->Gather("nccl/" + name, members.processes, Writer().PutBytes(failure).Put(id).bytes(), &watch, &all);
  if (!status.ok()) return status;
  for (int member = 0; member < members.num_members(); ++member) {
    const std::string words{Reader(all[member]).GetBytes()};
    if (!words.empty()) {
      return Status(EPL_UNIMPLEMENTED, job->NameOf(members.processes[member]) + ": " + words);
    }
  }
  Reader first(all[0]);
  first.GetBytes();
  id = first.Get<gpu::UniqueId>();
  if (!first.done()) return Status(EPL_INTERNAL, "the description of the communicator arrived damaged");
  device->reset(new NcclTransport(job, members, id));
  return Status();
}

}  // namespace epl
