// The stand-in's NCCL. Each rank posts what it sends on a board and takes what the others posted, on its own stream.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/reduce.h"
#include "tests/gpu/stand_in.h"

using epl::gpu::Stream;
using epl::gpu::UniqueId;
using gpu_stand_in::Access;

namespace {

using Bytes = std::vector<uint8_t>;

// What one rank posts of its k-th collective.
struct Post {
  std::string what;  // kind, dtype, count, root: the same on every rank
  Bytes bytes;
  double scale;
};

std::atomic<bool> broken{false};

// One rank's place at the board of its communicator: a folder of files, which ranks of other processes see as well.
// Files appear whole and are read once they are there.
class Board {
 public:
  explicit Board(const std::string& folder) : folder_(folder) { mkdir(folder.c_str(), 0700); }

  // Its kernels end, those that wait too; as NCCL's, it says nothing to other ranks.
  void Abort() {
    aborted_ = true;
    std::lock_guard<std::mutex> lock(running_);
  }

  // Runs a kernel of this rank, unless the communicator was aborted.
  void Run(const std::function<void()>& kernel) {
    std::lock_guard<std::mutex> lock(running_);
    if (!aborted_) kernel();
  }

  void Put(const std::string& name, const Bytes& bytes) {
    const std::string file = folder_ + "/" + name, unfinished = file + ".unfinished";
    FILE* stream = fopen(unfinished.c_str(), "wb");
    if (stream == nullptr || fwrite(bytes.data(), 1, bytes.size(), stream) != bytes.size() || fclose(stream) != 0 ||
        rename(unfinished.c_str(), file.c_str()) != 0) {
      gpu_stand_in::Misuse("the board cannot be written: " + file + ": " + strerror(errno));
    }
  }

  // False if the communicator was aborted before the file came.
  bool Await(const std::string& name, Bytes* bytes) {
    const std::string file = folder_ + "/" + name;
    FILE* stream = nullptr;
    while (!aborted_ && (broken || (stream = fopen(file.c_str(), "rb")) == nullptr)) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (stream == nullptr) return false;
    struct stat status;
    fstat(fileno(stream), &status);
    bytes->resize(status.st_size);
    const bool whole = fread(bytes->data(), 1, bytes->size(), stream) == bytes->size();
    fclose(stream);
    if (!whole) gpu_stand_in::Misuse("the board cannot be read: " + file);
    return true;
  }

  void Remove(const std::string& name) { unlink((folder_ + "/" + name).c_str()); }

 private:
  const std::string folder_;
  std::atomic<bool> aborted_{false};
  std::mutex running_;
};

}  // namespace

namespace epl {
namespace gpu {

struct ncclComm {
  std::shared_ptr<Board> board;
  int rank, size, gpu;
  int64_t collectives = 0;                           // enqueued so far
  std::map<int, int64_t> sent, received;             // by peer
  std::map<int, std::pair<int, double>> reductions;  // scaled sums: dtype and factor
  int last_reduction = 100;
};

}  // namespace gpu
}  // namespace epl

namespace {

using epl::gpu::Comm;

epl_dtype DtypeOf(int type) {
  switch (type) {
    case epl::gpu::kInt8:
      return EPL_INT8;
    case epl::gpu::kUint8:
      return EPL_UINT8;
    case epl::gpu::kInt32:
      return EPL_INT32;
    case epl::gpu::kInt64:
      return EPL_INT64;
    case epl::gpu::kFloat16:
      return EPL_FLOAT16;
    case epl::gpu::kFloat32:
      return EPL_FLOAT32;
    case epl::gpu::kFloat64:
      return EPL_FLOAT64;
    case epl::gpu::kBfloat16:
      return EPL_BFLOAT16;
  }
  gpu_stand_in::Misuse("dtype " + std::to_string(type));
}

epl_reduce_op ReductionOf(int reduction) {
  if (reduction == epl::gpu::kProd) return EPL_PROD;
  if (reduction == epl::gpu::kMin) return EPL_MIN;
  if (reduction == epl::gpu::kMax) return EPL_MAX;
  return EPL_SUM;
}

std::string PostName(int64_t number, int rank) {
  return "collective." + std::to_string(number) + ".rank." + std::to_string(rank);
}

Bytes Packed(const Post& post) {
  const int64_t size = post.what.size();
  Bytes bytes(sizeof(size) + sizeof(post.scale) + size + post.bytes.size());
  memcpy(bytes.data(), &size, sizeof(size));
  memcpy(bytes.data() + sizeof(size), &post.scale, sizeof(post.scale));
  memcpy(bytes.data() + sizeof(size) + sizeof(post.scale), post.what.data(), size);
  if (!post.bytes.empty())
    memcpy(bytes.data() + bytes.size() - post.bytes.size(), post.bytes.data(), post.bytes.size());
  return bytes;
}

Post Unpacked(const Bytes& bytes) {
  int64_t size;
  Post post;
  memcpy(&size, bytes.data(), sizeof(size));
  memcpy(&post.scale, bytes.data() + sizeof(size), sizeof(post.scale));
  const uint8_t* words = bytes.data() + sizeof(size) + sizeof(post.scale);
  post.what.assign(words, words + size);
  post.bytes.assign(words + size, bytes.data() + bytes.size());
  return post;
}

// All ranks' posts, once they are there and agree; empty if the communicator was aborted.
std::vector<Post> Meet(Board* board, int rank, int size, int64_t number, const Post& own) {
  board->Put(PostName(number, rank), Packed(own));
  std::vector<Post> all;
  for (int other = 0; other < size; ++other) {
    Bytes bytes;
    if (!board->Await(PostName(number, other), &bytes)) return {};
    all.push_back(Unpacked(bytes));
    if (all.back().what != own.what) {
      gpu_stand_in::Misuse("rank " + std::to_string(rank) + " does " + own.what + " where rank " +
                           std::to_string(other) + " does " + all.back().what);
    }
  }
  board->Remove(PostName(number - 1, rank));  // all have read it: they are at `number`
  return all;
}

std::string MailName(int sender, int receiver, int64_t number) {
  return "mail." + std::to_string(sender) + "." + std::to_string(receiver) + "." + std::to_string(number);
}

// Work of the group that is being collected, by this thread.
thread_local int group_depth = 0;
struct Grouped {
  Stream stream;
  std::string what;
  std::vector<Access> accesses;
  std::function<void()> work;
};
thread_local std::vector<Grouped> grouped;

void Add(Comm comm, Stream stream, const std::string& what, std::vector<Access> accesses, std::function<void()> work) {
  if (gpu_stand_in::GpuOf(stream) != comm->gpu) gpu_stand_in::Misuse(what + " on a stream of another context");
  std::shared_ptr<Board> board = comm->board;
  grouped.push_back({stream, what, std::move(accesses), [board, work] { board->Run(work); }});
}

void EndGroup() {
  for (Grouped& each : grouped) gpu_stand_in::Enqueue(each.stream, each.what, each.accesses, std::move(each.work));
  grouped.clear();
}

std::atomic<int> num_collectives{0};

enum class Result { kReduced, kRoot, kGathered, kScattered };

// One collective of a rank: `count` elements in, `written` elements out.
int Collective(const char* name, Result result, const void* from, void* to, size_t count, int type, int reduction,
               int root, Comm comm, Stream stream) {
  const epl_dtype dtype = DtypeOf(type);
  const size_t bytes = count * epl::SizeOf(dtype);
  const int size = comm->size, rank = comm->rank;
  // A reduction to one rank alone leaves the others' outputs as they are; a broadcast reads at its root alone.
  const bool reads = result != Result::kRoot || rank == root;
  const bool writes = result != Result::kReduced || root < 0 || rank == root;
  const size_t in = result == Result::kScattered ? bytes * size : bytes;
  const size_t out = result == Result::kGathered ? bytes * size : bytes;
  double scale = 1;
  const auto scaled = comm->reductions.find(reduction);
  if (scaled != comm->reductions.end()) scale = scaled->second.second;
  const epl_reduce_op op = ReductionOf(reduction);
  const std::string what = std::string(name) + " of " + std::to_string(count) + " elements of dtype " +
                           std::to_string(type) + ", root " + std::to_string(root);
  std::vector<Access> accesses;
  if (reads) accesses.push_back({from, in, false});
  if (writes) accesses.push_back({to, out, true});
  const int64_t number = comm->collectives++;
  ++num_collectives;
  Board* const board = comm->board.get();
  const bool outer = group_depth == 0;
  Add(comm, stream, what, accesses, [=] {
    Post own = {what, Bytes(), scale};
    if (reads) own.bytes.assign(static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + in);
    const std::vector<Post> all = Meet(board, rank, size, number, own);
    if (all.empty() || !writes) return;
    if (result == Result::kRoot) {
      memcpy(to, all[root].bytes.data(), bytes);
    } else if (result == Result::kGathered) {
      for (int source = 0; source < size; ++source) {
        memcpy(static_cast<uint8_t*>(to) + source * bytes, all[source].bytes.data(), bytes);
      }
    } else {
      std::vector<const void*> sources;
      std::vector<double> scales;
      for (const Post& post : all) {
        sources.push_back(post.bytes.data() + (result == Result::kScattered ? rank * bytes : 0));
        scales.push_back(post.scale);
      }
      Bytes reduced(bytes + 1);
      epl::Reduce(dtype, op, reduced.data(), sources.data(), scales.data(), size, count);
      memcpy(to, reduced.data(), bytes);
    }
  });
  if (outer) EndGroup();
  return 0;
}

}  // namespace

int gpu_stand_in::NumCollectives() { return num_collectives; }
void gpu_stand_in::BreakNetwork() { broken = true; }

extern "C" {

int ncclGetUniqueId(UniqueId* id) {
  static int last = 0;
  const char* folder = getenv(gpu_stand_in::kBoards);
  if (folder == nullptr) gpu_stand_in::Misuse(std::string("no folder for boards in ") + gpu_stand_in::kBoards);
  memset(id, 0, sizeof(*id));
  snprintf(id->bytes, sizeof(id->bytes), "%s/board.%d.%d", folder, getpid(), ++last);
  return 0;
}

int ncclCommInitRank(Comm* comm, int size, UniqueId id, int rank) {
  *comm = new epl::gpu::ncclComm;
  (*comm)->board = std::make_shared<Board>(id.bytes);
  (*comm)->rank = rank;
  (*comm)->size = size;
  (*comm)->gpu = gpu_stand_in::CurrentGpu();
  gpu_stand_in::Count("communicators", 1);
  return 0;
}

int ncclCommDestroy(Comm comm) {
  if (!comm->reductions.empty()) gpu_stand_in::Misuse("a communicator ends with scaled sums of its own");
  delete comm;
  gpu_stand_in::Count("communicators", -1);
  return 0;
}

int ncclCommAbort(Comm comm) {
  comm->board->Abort();
  delete comm;
  gpu_stand_in::Count("communicators", -1);
  return 0;
}

int ncclCommGetAsyncError(Comm, int* error) {
  *error = broken ? gpu_stand_in::kRemoteError : 0;
  return 0;
}

const char* ncclGetErrorString(int) { return "an error of the stand-in"; }

int ncclRedOpCreatePreMulSum(int* reduction, void* scalar, int type, int, Comm comm) {
  double scale = 0;
  if (type == epl::gpu::kFloat64) {
    scale = *static_cast<double*>(scalar);
  } else if (type == epl::gpu::kFloat32) {
    scale = *static_cast<float*>(scalar);
  } else if (type == epl::gpu::kBfloat16) {
    const uint32_t bits = static_cast<uint32_t>(*static_cast<uint16_t*>(scalar)) << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    scale = value;
  } else {
    // The value of a float16: exponent and fraction, as far as the tests' factors need them.
    const uint16_t bits = *static_cast<uint16_t*>(scalar);
    scale = (1 + (bits & 0x3ff) / 1024.0) * static_cast<double>(1 << (bits >> 10)) / (1 << 15);
  }
  *reduction = ++comm->last_reduction;
  comm->reductions[*reduction] = {type, scale};
  return 0;
}

int ncclRedOpDestroy(int reduction, Comm comm) { return comm->reductions.erase(reduction) == 1 ? 0 : 4; }

int ncclAllReduce(const void* from, void* to, size_t count, int type, int reduction, Comm comm, Stream stream) {
  return Collective("ncclAllReduce", Result::kReduced, from, to, count, type, reduction, -1, comm, stream);
}
int ncclReduce(const void* from, void* to, size_t count, int type, int reduction, int root, Comm comm, Stream stream) {
  return Collective("ncclReduce", Result::kReduced, from, to, count, type, reduction, root, comm, stream);
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Comm comm, Stream stream) {
  return Collective("ncclBroadcast", Result::kRoot, from, to, count, type, epl::gpu::kSum, root, comm, stream);
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Comm comm, Stream stream) {
  return Collective("ncclAllGather", Result::kGathered, from, to, count, type, epl::gpu::kSum, -1, comm, stream);
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int reduction, Comm comm, Stream stream) {
  return Collective("ncclReduceScatter", Result::kScattered, from, to, count, type, reduction, -1, comm, stream);
}

int ncclSend(const void* from, size_t count, int type, int peer, Comm comm, Stream stream) {
  const size_t bytes = count * epl::SizeOf(DtypeOf(type));
  const std::string mail = MailName(comm->rank, peer, comm->sent[peer]++);
  Board* const board = comm->board.get();
  Add(comm, stream, "ncclSend", {{from, bytes, false}}, [=] {
    const uint8_t* begin = static_cast<const uint8_t*>(from);
    board->Put(mail, Bytes(begin, begin + bytes));
  });
  if (group_depth == 0) EndGroup();
  return 0;
}

int ncclRecv(void* to, size_t count, int type, int peer, Comm comm, Stream stream) {
  const size_t bytes = count * epl::SizeOf(DtypeOf(type));
  const std::string mail = MailName(peer, comm->rank, comm->received[peer]++);
  Board* const board = comm->board.get();
  Add(comm, stream, "ncclRecv", {{to, bytes, true}}, [=] {
    Bytes received;
    if (!board->Await(mail, &received)) return;
    if (received.size() != bytes) gpu_stand_in::Misuse("ncclRecv of another size than ncclSend");
    memcpy(to, received.data(), bytes);
    board->Remove(mail);
  });
  if (group_depth == 0) EndGroup();
  return 0;
}

int ncclGroupStart() {
  ++group_depth;
  return 0;
}
int ncclGroupEnd() {
  if (--group_depth == 0) EndGroup();
  return 0;
}

}  // extern "C"
