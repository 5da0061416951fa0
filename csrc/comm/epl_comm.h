// The C ABI of the collective core: jobs, communicators, and the asynchronous submission of collectives.
//
// The core knows processes, ranks, buffers, dtypes and reductions; it knows nothing of TensorFlow. One build serves
// every TensorFlow, because nothing but C crosses this line.
//
//   process 0              process 1
//   +--------------+       +--------------+
//   | job ---------+--TCP--+--- job       |   control plane: start, exchange, end of data, death, "who is missing"
//   | communicator |       | communicator |
//   |  rank 0, 1   +==data=+  rank 2, 3   |   data plane: local, shared memory, Gloo, NCCL
//   +--------------+       +--------------+
//
// Every rank of a communicator submits the same collectives in the same order; the k-th submission of a rank is matched
// with the k-th of every other rank, and its key, kind, dtype and counts are compared.
//
// Generations. A step that cannot be done by all is done by none: a process that reaches the end of its data calls
// epl_job_end_generation, every collective of that generation that it had not joined fails everywhere with
// EPL_OUT_OF_RANGE, every process ends the generation in its turn, and the next one starts with fresh counters.

#ifndef EPL_COMM_EPL_COMM_H_
#define EPL_COMM_EPL_COMM_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPL_COMM_ABI_VERSION 4

#if defined(__GNUC__)
#define EPL_EXPORT __attribute__((visibility("default")))
#else
#define EPL_EXPORT
#endif

// The numbers are those of TensorFlow's error codes, so that a kernel can pass them on.
typedef enum {
  EPL_OK = 0,
  EPL_CANCELLED = 1,
  EPL_INVALID_ARGUMENT = 3,
  EPL_DEADLINE_EXCEEDED = 4,
  EPL_FAILED_PRECONDITION = 9,
  EPL_OUT_OF_RANGE = 11,
  EPL_UNIMPLEMENTED = 12,
  EPL_INTERNAL = 13,
} epl_code;

typedef enum {
  EPL_UINT8 = 0,
  EPL_INT8 = 1,
  EPL_INT32 = 2,
  EPL_INT64 = 3,
  EPL_FLOAT16 = 4,
  EPL_FLOAT32 = 5,
  EPL_FLOAT64 = 6,
  EPL_BFLOAT16 = 7,
} epl_dtype;

typedef enum { EPL_SUM = 0, EPL_PROD = 1, EPL_MIN = 2, EPL_MAX = 3 } epl_reduce_op;

typedef enum {
  EPL_ALL_REDUCE = 0,      // outputs[i] = reduce over ranks of inputs[i]
  EPL_REDUCE = 1,          // the same on root; the other ranks' outputs are left as they are
  EPL_BROADCAST = 2,       // outputs[i] = inputs[i] of root
  EPL_ALL_GATHER = 3,      // output = rows of rank 0, rows of rank 1, ...; row counts may differ
  EPL_REDUCE_SCATTER = 4,  // the reduced rows, cut in world-size parts; sizes differ by at most one, larger ones first
  EPL_ALL_TO_ALL = 5,      // row_splits[r] rows go to rank r; output = rows from rank 0, from rank 1, ...
} epl_kind;

typedef struct {
  int code;
  char message[4096];
} epl_status;

typedef struct epl_job epl_job;
typedef struct epl_communicator epl_communicator;

// Writes the HMAC-SHA256 of the bytes under the secret of the job; 0 if it cannot. The core has no cryptography of its
// own.
typedef int (*epl_mac_fn)(void* context, const void* bytes, int64_t size, uint8_t digest[32]);

typedef struct {
  int num_processes;
  int process;               // index of this process
  const char* const* hosts;  // "host:port" of each process; process 0's is the meeting point of the control plane
  int listen_fd;             // listening socket of hosts[process] inherited from the launcher, or -1: bind it here
  double start_timeout_s;    // how long a process may take to appear
  double stall_warning_s;    // a collective that waits longer is reported on stderr, with the missing ranks; 0: never
  double timeout_s;          // a collective that waits longer fails with EPL_DEADLINE_EXCEEDED; 0: never
  const char* job_name;      // a worker with another one is refused; NULL: ""
  epl_mac_fn mac;            // a worker with another secret is refused; NULL: the job has no secret, anyone may join
  void* mac_context;         // both are used in epl_job_start alone
} epl_job_options;

// ---- Job: the processes of one training run. Blocks until all have appeared; the error names those that have not.
EPL_EXPORT int epl_job_start(const epl_job_options* options, epl_job** job, epl_status* status);
// Opens a socket that listens at `address`, "host:port" of this process, on the interface of that address; port 0 takes
// a free one. `hosts` are those of all processes: where the address tells no interface (a name that means loopback here
// and not to the others) it is every interface.
EPL_EXPORT int epl_listen(const char* address, const char* const* hosts, int num_hosts, int* fd, epl_status* status);
// Says goodbye (an orderly exit, told apart from a death by the others), fails what is pending, frees. Safe at exit.
EPL_EXPORT void epl_job_stop(epl_job* job);
// Every process gives `size` bytes under the same `key` and gets those of all, in process order, concatenated in a
// buffer to be freed with epl_free; sizes[num_processes] is filled. Blocks; errors name the missing processes.
EPL_EXPORT int epl_job_exchange(epl_job* job, const char* key, const void* bytes, int64_t size, void** all,
                                int64_t* sizes, epl_status* status);
// Fills processes[num_processes] with those that have not given theirs yet, for an exchange that this process waits in,
// and returns their number; -1 if process 0, which knows, does not answer within a second.
EPL_EXPORT int epl_job_missing(epl_job* job, const char* key, int* processes);
// Fills seconds[num_processes]: how long nothing was heard of a process, 0 for those that are well or have left. A
// process that is stopped or cut off, but not dead, is noticed by nothing else.
EPL_EXPORT void epl_job_silences(epl_job* job, double* seconds);
EPL_EXPORT void epl_free(void* pointer);
// The step cannot be done: this process is at the end of its data, or saw that another is. Recoverable; idempotent
// within a generation. In a job of one process, any failed step is ended this way. When it returns, what was pending
// has failed and what is submitted from then on belongs to the next generation (called in a `done`, it returns at
// once).
EPL_EXPORT void epl_job_end_generation(epl_job* job, const char* reason);
// The same for a caller that may be late or repeat itself: ends `generation` and does nothing if that has ended
// already. epl_job_generation tells the present one. (epl_job_end_generation cannot tell a repetition from the end of a
// new generation in which this process has submitted nothing, and takes it for a repetition.)
EPL_EXPORT int64_t epl_job_generation(epl_job* job);
EPL_EXPORT void epl_job_end_generation_of(epl_job* job, int64_t generation, const char* reason);
// This process has failed: every pending and later collective of every process fails with EPL_INTERNAL and
// "worker <process>: <reason>". Not recoverable.
EPL_EXPORT void epl_job_abort(epl_job* job, const char* reason);
// Why nothing can be done any more: the first process that failed, as far as is known here, and why (EPL_INTERNAL), or
// that the job was stopped. EPL_OK if neither.
EPL_EXPORT int epl_job_trouble(epl_job* job, epl_status* status);

// ---- Communicator: ranks that do collectives together. rank_process[r] is the process that owns rank r.
// transport: "auto", "local" (one process), "shm" (one machine), "gloo" (any), "nccl" (GPU buffers; NCCL finds the
// machines by itself). "hierarchical" is "auto" but between several machines with equally many processes, at least two
// on each: between these each byte goes once. The host of a process's address is its machine.
// Collective over the processes that own a rank; they create their communicators in the same order. Names are unique
// within a job; creating a name again with the same ranks gives the existing one.
EPL_EXPORT int epl_communicator_create(epl_job* job, const char* name, const int* rank_process, int num_ranks,
                                       const char* transport, epl_communicator** communicator, epl_status* status);
// The communicator of that name in this process, or NULL. Kernels find theirs so.
EPL_EXPORT epl_communicator* epl_communicator_find(const char* name);
EPL_EXPORT int epl_communicator_size(const epl_communicator* communicator);
EPL_EXPORT const char* epl_communicator_transport(const epl_communicator* communicator);  // "local", "shm", ...
EPL_EXPORT void epl_communicator_destroy(epl_communicator* communicator);

// ---- Collectives.
typedef struct {
  epl_kind kind;
  epl_dtype dtype;
  epl_reduce_op reduce_op;
  int root;
  const char* key;  // the same on every rank; names the op in every message
  int num_buffers;  // several buffers are fused in one transfer (all_reduce, reduce, broadcast); else 1
  const void* const* inputs;
  void* const* outputs;       // may be the inputs; ignored by kinds that allocate (all_gather, reduce_scatter,
                              // all_to_all), which ask `allocate`
  const int64_t* counts;      // elements of each buffer
  double scale;               // inputs of floating dtype are multiplied by it before the reduction; it may differ
                              // between ranks (weighted mean)
  int64_t row_elements;       // elements of one row, for the kinds that move rows
  const int64_t* row_splits;  // all_to_all: rows for each rank (world-size many)
  void* stream;               // CUDA stream of the buffers, for nccl; else NULL
} epl_collective;

// Called at most once, when the row counts are known and before data moves: rows[r] come from rank r (reduce_scatter:
// rows of this rank's part alone, num_rows = 1). Returns the output buffer, or NULL to fail the collective. On a GPU
// the buffer may still be in use by work that is enqueued on args.stream when this returns: the collective comes after
// it.
typedef void* (*epl_allocate_fn)(void* context, const int64_t* rows, int num_rows);
// Called exactly once, from any thread; the buffers, the description's arrays and strings stay valid until then.
typedef void (*epl_done_fn)(void* context, int code, const char* message);

// Never blocks. Returns a ticket for epl_cancel.
EPL_EXPORT int64_t epl_submit(epl_communicator* communicator, int rank, const epl_collective* collective,
                              epl_allocate_fn allocate, epl_done_fn done, void* context);
// The step of this submission is being given up: its `done` is called soon, with EPL_CANCELLED unless it has finished.
EPL_EXPORT void epl_cancel(epl_communicator* communicator, int64_t ticket);

EPL_EXPORT int epl_comm_abi_version(void);
// What this build can do, as "local shm gloo nccl", those that are missing left out; `why` names, if not NULL, what a
// missing one needs ("gloo: not built, install libgloo-dev and build again").
EPL_EXPORT const char* epl_comm_transports(const char** why);

#ifdef __cplusplus
}
#endif

#endif  // EPL_COMM_EPL_COMM_H_
