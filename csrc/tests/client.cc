// The tests' view of the C ABI.

#include "tests/client.h"

#include <string.h>

#include <chrono>
#include <functional>

#include "tests/check.h"
#include "tests/gpu/stand_in.h"

namespace epl_test {

Options MakeOptions(int processes) {
  Options options;
  options.processes = processes;
  std::string address;
  options.listen_fd = ListeningSocket(&address);
  options.hosts.push_back(address);
  for (int process = 1; process < processes; ++process) options.hosts.push_back("127.0.0.1:" + std::to_string(process));
  return options;
}

void SetMachines(const std::vector<int>& hosts, Options* options) {
  for (size_t process = 1; process < hosts.size(); ++process) {
    options->hosts[process] = "127.0.0." + std::to_string(hosts[process]) + ":" + std::to_string(process);
  }
}

epl::Mac MacUnder(const std::string& secret) {
  if (secret.empty()) return nullptr;
  return [secret](std::string_view text) {
    const size_t hash = std::hash<std::string>()(secret + std::string(text));
    std::string digest(32, 'x');
    memcpy(&digest[0], &hash, sizeof(hash));
    return digest;
  };
}

static int ComputeMac(void* context, const void* bytes, int64_t size, uint8_t digest[32]) {
  const std::string mac =
      MacUnder(*static_cast<std::string*>(context))({static_cast<const char*>(bytes), static_cast<size_t>(size)});
  memcpy(digest, mac.data(), mac.size());
  return 1;
}

int TryStart(const Options& options, int process, epl_job** job, std::string* message) {
  std::vector<const char*> hosts;
  for (const std::string& host : options.hosts) hosts.push_back(host.c_str());
  epl_job_options native = {};
  native.num_processes = options.processes;
  native.process = process;
  native.hosts = hosts.data();
  native.listen_fd = process == 0 ? options.listen_fd : -1;
  native.start_timeout_s = options.start_timeout;
  native.stall_warning_s = options.stall;
  native.timeout_s = options.timeout;
  native.job_name = options.job_name.c_str();
  std::string secret = options.secret;
  native.mac = secret.empty() ? nullptr : ComputeMac;
  native.mac_context = &secret;
  epl_status status;
  int code = epl_job_start(&native, job, &status);
  CHECK(code == status.code);
  if (message != nullptr) *message = status.message;
  return code;
}

Job::Job(const Options& options, int process) {
  std::string message;
  int code = TryStart(options, process, &job_, &message);
  CHECK_WORDS(code == EPL_OK, message);
}

Job::~Job() { Stop(); }

void Job::Stop() {
  if (job_ != nullptr) epl_job_stop(job_);
  job_ = nullptr;
}

int Job::TryMake(const std::string& name, const std::vector<int>& rank_process, const std::string& transport,
                 std::string* message) {
  epl_status status;
  epl_communicator* communicator;
  int code = epl_communicator_create(job_, name.c_str(), rank_process.data(), static_cast<int>(rank_process.size()),
                                     transport.c_str(), &communicator, &status);
  *message = status.message;
  return code;
}

epl_communicator* Job::Make(const std::string& name, const std::vector<int>& rank_process,
                            const std::string& transport) {
  std::string message;
  CHECK_WORDS(TryMake(name, rank_process, transport, &message) == EPL_OK, message);
  return epl_communicator_find(name.c_str());
}

Call::~Call() {
  if (submitted_) Wait();
}

void* Call::Allocate(void* context, const int64_t* rows, int num_rows) {
  Call* call = static_cast<Call*>(context);
  call->rows.assign(rows, rows + num_rows);
  int64_t total = 0;
  for (int64_t count : call->rows) total += count;
  if (call->refuse_allocation) return nullptr;
  call->allocated.assign(total * call->args.row_elements * call->element_size + 1, 0xee);
  return call->allocated.data();
}

void Call::Done(void* context, int code, const char* message) {
  Call* call = static_cast<Call*>(context);
  std::lock_guard<std::mutex> lock(call->mutex_);
  CHECK(!call->done_);
  call->done_ = true;
  call->code = code;
  call->message = message == nullptr ? "" : message;
  call->changed_.notify_all();
}

// The stream of a rank's GPU, made when it is first asked for.
static epl::gpu::Stream StreamOf(int rank) {
  static std::mutex mutex;
  static std::map<int, epl::gpu::Stream> streams;
  std::lock_guard<std::mutex> lock(mutex);
  epl::gpu::Stream& stream = streams[rank];
  if (stream == nullptr) stream = gpu_stand_in::MakeStream();
  return stream;
}

void Call::Submit(epl_communicator* communicator, int rank) {
  args.key = key.c_str();
  args.num_buffers = static_cast<int>(counts.size());
  args.inputs = inputs.data();
  args.outputs = outputs.data();
  args.counts = counts.data();
  args.row_splits = splits.empty() ? nullptr : splits.data();
  if (args.stream == nullptr && strcmp(epl_communicator_transport(communicator), "nccl") == 0) {
    gpu_stand_in::UseGpu(rank % 8);
    args.stream = StreamOf(rank);
  }
  submitted_ = true;
  ticket = epl_submit(communicator, rank, &args, Allocate, Done, this);
}

bool Call::WaitFor(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  // A system-clock wait: the sanitizers of this compiler do not know the other one.
  auto until = std::chrono::system_clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  return changed_.wait_until(lock, until, [this] { return done_; });
}

int Call::Wait(double limit) {
  CHECK_WORDS(WaitFor(limit), "'" + key + "' took too long");
  submitted_ = false;
  return code;
}

std::unique_ptr<Call> Sum(const std::string& key, std::vector<float>* data) {
  std::unique_ptr<Call> call(new Call);
  call->key = key;
  call->inputs = {data->data()};
  call->outputs = {data->data()};
  call->counts = {static_cast<int64_t>(data->size())};
  call->args.kind = EPL_ALL_REDUCE;
  call->args.dtype = EPL_FLOAT32;
  call->args.reduce_op = EPL_SUM;
  call->args.scale = 1;
  return call;
}

int SumOnce(epl_communicator* communicator, const std::vector<int>& ranks, const std::string& key, int64_t count,
            std::string* message) {
  std::vector<std::vector<float>> data(ranks.size());
  std::vector<std::unique_ptr<Call>> calls;
  for (size_t i = 0; i < ranks.size(); ++i) {
    data[i].assign(count, static_cast<float>(ranks[i] + 1));
    calls.push_back(Sum(key, &data[i]));
    calls.back()->Submit(communicator, ranks[i]);
  }
  int code = EPL_OK;
  for (auto& call : calls) {
    if (call->Wait() != EPL_OK) {
      code = call->code;
      if (message != nullptr) *message = call->message;
    }
  }
  const int size = epl_communicator_size(communicator);
  if (code == EPL_OK) {
    for (auto& values : data) {
      for (float value : values) CHECK(value == static_cast<float>(size * (size + 1) / 2));
    }
  }
  return code;
}

std::vector<int> Even(int processes, int each) {
  std::vector<int> rank_process;
  for (int process = 0; process < processes; ++process) rank_process.insert(rank_process.end(), each, process);
  return rank_process;
}

std::vector<int> RanksOf(const std::vector<int>& rank_process, int process) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < rank_process.size(); ++rank) {
    if (rank_process[rank] == process) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace epl_test
