// The C ABI over the classes: handles, the registry of communicators, and what must outlive both.

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/epl_comm.h"
#include "comm/job.h"
#include "comm/wire.h"

struct epl_communicator {
  std::unique_ptr<epl::Communicator> object;
  epl_job* job;
};

struct epl_job {
  std::unique_ptr<epl::Job> object;
};

namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, epl_communicator*> by_name;
  // Closed communicators and stopped jobs. A kernel may hold one and submit to it while the process ends; it is told
  // that it is closed. They are small, and hold no file and no thread.
  std::vector<epl_communicator*> closed;
  std::vector<epl_job*> stopped;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;  // never destroyed: threads may outlive main
  return *registry;
}

// Takes it out of the registry; the caller closes it.
void Unregister(epl_communicator* communicator) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto it = registry.by_name.find(communicator->object->name());
  if (it != registry.by_name.end() && it->second == communicator) registry.by_name.erase(it);
  registry.closed.push_back(communicator);
}

}  // namespace

extern "C" {

int epl_job_start(const epl_job_options* options, epl_job** job, epl_status* status) {
  std::unique_ptr<epl_job> made(new epl_job);
  epl::Status result = epl::Job::Start(*options, &made->object);
  if (result.ok()) *job = made.release();
  return result.Export(status);
}

int epl_listen(const char* address, const char* const* hosts, int num_hosts, int* fd, epl_status* status) {
  return epl::Listen(address, std::vector<std::string>(hosts, hosts + num_hosts), fd).Export(status);
}

void epl_job_stop(epl_job* job) {
  if (job == nullptr) return;
  Registry& registry = TheRegistry();
  std::vector<epl_communicator*> mine;
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    if (std::find(registry.stopped.begin(), registry.stopped.end(), job) != registry.stopped.end()) return;
    registry.stopped.push_back(job);
    for (auto& entry : registry.by_name) {
      if (entry.second->job == job) mine.push_back(entry.second);
    }
  }
  job->object->BeginStop();
  for (epl_communicator* communicator : mine) epl_communicator_destroy(communicator);
  job->object->Stop();
}

int epl_job_exchange(epl_job* job, const char* key, const void* bytes, int64_t size, void** all, int64_t* sizes,
                     epl_status* status) {
  std::vector<std::string> parts;
  epl::Status result =
      job->object->Exchange(key, std::string(static_cast<const char*>(bytes), static_cast<size_t>(size)), &parts);
  if (!result.ok()) return result.Export(status);
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    sizes[i] = static_cast<int64_t>(parts[i].size());
    joined += parts[i];
  }
  *all = malloc(joined.size() + 1);
  memcpy(*all, joined.data(), joined.size());
  return result.Export(status);
}

int epl_job_missing(epl_job* job, const char* key, int* processes) {
  std::vector<int> missing;
  if (!job->object->MissingInExchange(key, &missing)) return -1;
  const int number = std::min(static_cast<int>(missing.size()), job->object->num_processes());
  std::copy_n(missing.begin(), number, processes);
  return number;
}

void epl_job_silences(epl_job* job, double* seconds) {
  const std::vector<double> silences = job->object->Silences();
  std::copy(silences.begin(), silences.end(), seconds);
}

void epl_free(void* pointer) { free(pointer); }

void epl_job_end_generation(epl_job* job, const char* reason) { job->object->EndGeneration(-1, reason); }

int64_t epl_job_generation(epl_job* job) { return job->object->generation(); }

void epl_job_end_generation_of(epl_job* job, int64_t generation, const char* reason) {
  job->object->EndGeneration(generation, reason);
}

void epl_job_abort(epl_job* job, const char* reason) { job->object->Abort(reason); }

int epl_job_trouble(epl_job* job, epl_status* status) { return job->object->Failure({}, -1).Export(status); }

int epl_communicator_create(epl_job* job, const char* name, const int* rank_process, int num_ranks,
                            const char* transport, epl_communicator** communicator, epl_status* status) {
  const std::vector<int> layout(rank_process, rank_process + num_ranks);
  Registry& registry = TheRegistry();
  {
    std::lock_guard<std::mutex> lock(registry.mutex);
    auto it = registry.by_name.find(name);
    if (it != registry.by_name.end() && it->second->job == job) {
      if (it->second->object->members().rank_process == layout) {
        *communicator = it->second;
        return epl::Status().Export(status);
      }
      return epl::Status(EPL_INVALID_ARGUMENT,
                         epl::Format("communicator '%s' exists already, over %d ranks that live elsewhere; choose "
                                     "another name",
                                     name, it->second->object->members().size()))
          .Export(status);
    }
  }
  std::unique_ptr<epl_communicator> made(new epl_communicator);
  made->job = job;
  epl::Status result = epl::Communicator::Create(job->object.get(), name, layout, transport, &made->object);
  if (!result.ok()) return result.Export(status);
  std::lock_guard<std::mutex> lock(registry.mutex);
  registry.by_name[name] = *communicator = made.release();
  return result.Export(status);
}

epl_communicator* epl_communicator_find(const char* name) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> lock(registry.mutex);
  auto it = registry.by_name.find(name);
  return it == registry.by_name.end() ? nullptr : it->second;
}

int epl_communicator_size(const epl_communicator* communicator) { return communicator->object->members().size(); }

const char* epl_communicator_transport(const epl_communicator* communicator) {
  return communicator->object->transport().c_str();
}

void epl_communicator_destroy(epl_communicator* communicator) {
  if (communicator == nullptr) return;
  Unregister(communicator);
  communicator->object->Close();
}

int64_t epl_submit(epl_communicator* communicator, int rank, const epl_collective* collective, epl_allocate_fn allocate,
                   epl_done_fn done, void* context) {
  return communicator->object->Submit(rank, *collective, allocate, done, context);
}

void epl_cancel(epl_communicator* communicator, int64_t ticket) { communicator->object->Cancel(ticket); }

int epl_comm_abi_version(void) { return EPL_COMM_ABI_VERSION; }

const char* epl_comm_transports(const char** why) { return epl::AvailableTransports(why); }

}  // extern "C"
