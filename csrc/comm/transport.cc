// The choice of a transport, made alike by all members.

#include "comm/transport.h"

#include "comm/exchange_gloo.h"
#include "comm/exchange_shm.h"
#include "comm/machine_layout.h"
#include "comm/nccl.h"
#include "comm/wire.h"

namespace epl {
namespace {

// All members must mean the same communicator before they build anything for it.
Status CheckSameCommunicator(Job* job, const Members& members, const std::string& name, const std::string& wanted) {
  std::string layout;
  for (int process : members.rank_process) layout += Format(layout.empty() ? "%d" : " %d", process);
  StallWatch watch(job, members.processes, -1, job->NameOf(job->process()),
                   "the making of communicator '" + name + "'");
  std::vector<std::string> all;
  Status status = job->Gather("communicator/" + name, members.processes,
                              Writer().PutBytes(wanted).PutBytes(layout).bytes(), &watch, &all);
  if (!status.ok()) return status;
  Reader first(all[0]);
  const std::string first_wanted(first.GetBytes());
  const std::string first_layout(first.GetBytes());
  for (size_t member = 1; member < all.size(); ++member) {
    Reader other(all[member]);
    const std::string other_wanted(other.GetBytes());
    const std::string other_layout(other.GetBytes());
    if (other_wanted == first_wanted && other_layout == first_layout) continue;
    return Status(
        EPL_INVALID_ARGUMENT,
        Format("communicator '%s': %s makes it with transport %s over processes [%s], %s with %s over [%s]",
               name.c_str(), job->NameOf(members.processes[0]).c_str(), first_wanted.c_str(), first_layout.c_str(),
               job->NameOf(members.processes[member]).c_str(), other_wanted.c_str(), other_layout.c_str()));
  }
  return Status();
}

void UseLocal(Transport* transport) {
  transport->gate = MakeLocalGate();
  transport->exchange = MakeLocalExchange();
}

}  // namespace

Status MakeTransport(Job* job, const Members& members, const std::string& name, const std::string& wanted,
                     Transport* transport) {
  const bool alone = members.num_members() == 1;
  if (wanted != "auto" && wanted != "local" && wanted != "shm" && wanted != "gloo" && wanted != "hierarchical" &&
      wanted != "nccl") {
    return Status(EPL_INVALID_ARGUMENT, "communicator '" + name + "': no transport is named '" + wanted +
                                            "'; expected auto, local, shm, gloo, hierarchical or nccl");
  }
  if (!alone) {
    Status status = CheckSameCommunicator(job, members, name, wanted);
    if (!status.ok()) return status;
  }
  auto refuse = [&](const Status& status) {
    return Status(status.code(),
                  "communicator '" + name + "' cannot use transport " + wanted + ": " + status.message());
  };
  if (wanted == "local" || (alone && (wanted == "auto" || wanted == "hierarchical"))) {
    if (!alone) {
      return refuse(Status(EPL_INVALID_ARGUMENT, "its ranks live in several processes; use auto, shm or gloo"));
    }
    UseLocal(transport);
    return Status();
  }
  if (wanted == "nccl") {
    if (alone) {
      transport->gate = MakeLocalGate();
    } else {
      std::unique_ptr<Exchange> unused;
      if (!MakeShm(job, members, name, &transport->gate, &unused).ok()) {
        transport->gate = MakeControlGate(job, members, name);
      }
    }
    Status status = MakeNccl(job, members, name, &transport->device);
    return status.ok() ? status : refuse(status);
  }
  const bool several = wanted == "hierarchical" && HasMachines(*job, members);
  if (wanted == "shm" || wanted == "auto" || (wanted == "hierarchical" && !several)) {
    if (alone) {  // asked for by name: nothing to share with
      UseLocal(transport);
      return Status();
    }
    Status status = MakeShm(job, members, name, &transport->gate, &transport->exchange);
    if (status.ok() || wanted == "shm") return status.ok() ? status : refuse(status);
    if (status.code() != EPL_FAILED_PRECONDITION) return status;
  }
  if (alone) {
    UseLocal(transport);
    return Status();
  }
  transport->gate = MakeControlGate(job, members, name);
  Status status = MakeGloo(job, members, name, several, &transport->exchange);
  return status.ok() ? status : refuse(status);
}

const char* AvailableTransports(const char** why) {
  static const std::string gloo = WhyNoGloo();
  static const std::string nccl = WhyNoNccl();
  static const std::string names =
      std::string("local shm") + (gloo.empty() ? " gloo" : "") + (nccl.empty() ? " nccl" : "");
  static const std::string reasons = (gloo.empty() ? "" : "gloo: " + gloo) +
                                     (!gloo.empty() && !nccl.empty() ? "; " : "") +
                                     (nccl.empty() ? "" : "nccl: " + nccl);
  if (why != nullptr) *why = reasons.c_str();
  return names.c_str();
}

}  // namespace epl
