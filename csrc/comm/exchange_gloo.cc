// Slots over Gloo. Only Gloo's connections and point-to-point messages are used: the programs are ours, so that sums
// have the same order as over any other transport, and nothing is sent before all have passed the gate, so that no
// message is ever left over. The hierarchical transport is this one, with the processes of a machine next to each
// other: they show their slots in shared memory, from which Gloo sends to the other machines.

#include "comm/exchange_gloo.h"

#include <gloo/context.h>
#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>

#include "comm/exchange_shm.h"
#include "comm/wire.h"

namespace epl {
namespace {

using gloo::transport::UnboundBuffer;

constexpr int kSlots = 4;
constexpr double kConnectSeconds = 60;

int64_t SlotBytes(int members) {
  const int64_t wanted = std::min<int64_t>(1 << 20, std::max<int64_t>(128 << 10, (16 << 20) / members));
  return (wanted + 64 * members - 1) / (64 * members) * (64 * members);
}

// A Gloo context whose processes find each other through the job's control plane.
class Mesh : public gloo::Context {
 public:
  Mesh(int rank, int size, const std::shared_ptr<gloo::transport::Device>& device) : gloo::Context(rank, size) {
    device_ = device;
    transportContext_ = device_->createContext(rank, size);
    transportContext_->setTimeout(
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::duration<double>(kConnectSeconds)));
  }

  // Where each other process is to connect to, by process.
  std::string Addresses() {
    Writer writer;
    for (int other = 0; other < size; ++other) {
      std::string bytes;
      if (other != rank) {
        std::vector<char> address = transportContext_->createPair(other)->address().bytes();
        bytes.assign(address.begin(), address.end());
      }
      writer.PutBytes(bytes);
    }
    return writer.bytes();
  }

  void Connect(int other, const std::string& addresses) {
    Reader reader(addresses);
    std::string_view bytes;
    for (int i = 0; i <= rank; ++i) bytes = reader.GetBytes();
    if (!reader.ok() || bytes.empty()) throw std::runtime_error("an address arrived damaged");
    transportContext_->getPair(other)->connect(std::vector<char>(bytes.begin(), bytes.end()));
  }
};

// The machines of a hierarchical communicator, and this one's shared memory.
struct Machines {
  MachineLayout layout;
  Members inside;                      // the members of this machine
  std::unique_ptr<Exchange> exchange;  // theirs; null: they cannot share memory, Gloo serves them too
  std::vector<const uint8_t*> slots;   // by member of `inside`

  // The member's index in `inside`; -1: Gloo moves what goes to it and comes from it.
  int InsideOf(int member, int self) const {
    const bool shares = exchange != nullptr && layout.machine_of[member] == layout.machine_of[self];
    return shares ? layout.place_of[member] : -1;
  }
};

class GlooExchange : public Exchange {
 public:
  // `machines` is null for a flat communicator.
  GlooExchange(Job* job, const Members& members, std::unique_ptr<Mesh> mesh, std::unique_ptr<Machines> machines)
      : job_(job),
        members_(members),
        slot_bytes_(SlotBytes(members.num_members())),
        mesh_(std::move(mesh)),
        machines_(std::move(machines)) {
    memory_.resize(members_.num_members() * kSlots * slot_bytes_);
    for (int member = 0; member < members_.num_members(); ++member) {
      for (int slot = 0; slot < kSlots; ++slot) {
        buffers_.emplace_back();
        if (!ByGloo(member)) continue;
        buffers_.back().out = mesh_->createUnboundBuffer(OwnMemory(slot), slot_bytes_);
        buffers_.back().in = mesh_->createUnboundBuffer(Memory(member, slot), slot_bytes_);
      }
    }
  }

  ~GlooExchange() override {
    mesh_->closeConnections();
    buffers_.clear();
  }

  const char* name() const override { return machines_ == nullptr ? "gloo" : "hierarchical"; }
  int64_t slot_bytes() const override { return slot_bytes_; }

  const MachineLayout* machines() const override { return machines_ == nullptr ? nullptr : &machines_->layout; }

  Status OwnSlot(uint64_t step, StallWatch*, uint8_t** slot) override {
    *slot = OwnMemory(step);
    return AwaitSends(step);
  }

  Status Post(uint64_t step, const Program& program, int64_t index) override {
    if (Inside() != nullptr) {
      Status status = Inside()->Post(step, program, index);
      if (!status.ok()) return status;
    }
    return Guard([&] {
      for (int member = 0; member < members_.num_members(); ++member) {
        if (!ByGloo(member)) continue;
        SlotBuffers& buffers = BuffersOf(member, step);
        Block in = program.Sent(index, member, members_.self);
        if (in.size > 0) {
          buffers.in->recv(member, step, in.offset, in.size);
          buffers.receiving = true;
        }
        Block out = program.Sent(index, members_.self, member);
        if (out.size > 0) {
          buffers.out->send(member, step, out.offset, out.size);
          buffers.sending = true;
        }
      }
      return Status();
    });
  }

  Status Wait(uint64_t step, const Program& program, int64_t index, StallWatch* watch, const uint8_t** slots) override {
    if (Inside() != nullptr) {
      Status status = Inside()->Wait(step, program, index, watch, machines_->slots.data());
      if (!status.ok()) return status;
    }
    for (int member = 0; member < members_.num_members(); ++member) {
      if (!ByGloo(member)) {
        const int inside = Inside() != nullptr ? machines_->InsideOf(member, members_.self) : -1;
        slots[member] = inside < 0 ? OwnMemory(step) : machines_->slots[inside];
        continue;
      }
      slots[member] = Memory(member, step);
      SlotBuffers& buffers = BuffersOf(member, step);
      if (!buffers.receiving) continue;
      Status status = Await(member, [&](std::chrono::milliseconds limit) { return buffers.in->waitRecv(limit); });
      if (!status.ok()) return status;
      buffers.receiving = false;
    }
    return Status();
  }

  Status Finish(StallWatch*) override {
    for (int slot = 0; slot < kSlots; ++slot) {
      Status status = AwaitSends(slot);
      if (!status.ok()) return status;
    }
    return Status();
  }

  void Wake() override {
    if (Inside() != nullptr) Inside()->Wake();
    if (job_->Failure({}, -1).code() != EPL_INTERNAL) return;
    for (SlotBuffers& buffers : buffers_) {
      if (buffers.in == nullptr) continue;
      buffers.in->abortWaitRecv();
      buffers.out->abortWaitSend();
    }
  }

 private:
  // Between this process and another, for one slot.
  struct SlotBuffers {
    std::unique_ptr<UnboundBuffer> in;
    std::unique_ptr<UnboundBuffer> out;
    bool receiving = false;
    bool sending = false;
  };

  Exchange* Inside() const { return machines_ == nullptr ? nullptr : machines_->exchange.get(); }
  bool ByGloo(int member) const {
    return member != members_.self && (machines_ == nullptr || machines_->InsideOf(member, members_.self) < 0);
  }
  uint8_t* OwnMemory(uint64_t step) {
    uint8_t* slot = Memory(members_.self, step);
    if (Inside() != nullptr) Inside()->OwnSlot(step, nullptr, &slot);
    return slot;
  }
  uint8_t* Memory(int member, uint64_t step) {
    return memory_.data() + (member * kSlots + static_cast<int64_t>(step % kSlots)) * slot_bytes_;
  }
  SlotBuffers& BuffersOf(int member, uint64_t step) { return buffers_[member * kSlots + step % kSlots]; }

  // Gloo reports by exceptions.
  template <typename Fn>
  Status Guard(Fn fn) {
    try {
      return fn();
    } catch (const std::exception& error) {
      return Status(EPL_INTERNAL, std::string("gloo: ") + error.what());
    }
  }

  // `wait` is Gloo's: true when done, false when it was aborted, an exception when it failed or took too long.
  template <typename Fn>
  Status Await(int member, Fn wait) {
    const double limit = job_->timeout_s() > 0 ? job_->timeout_s() : 30 * 86400;
    const auto milliseconds = std::chrono::milliseconds(static_cast<int64_t>(limit * 1000));
    return Guard([&] {
      if (wait(milliseconds)) return Status();
      return Status(EPL_INTERNAL, "the transfer with " + job_->NameOf(members_.processes[member]) + " was given up");
    });
  }

  Status AwaitSends(uint64_t step) {
    for (int member = 0; member < members_.num_members(); ++member) {
      SlotBuffers& buffers = BuffersOf(member, step);
      if (!buffers.sending) continue;
      Status status = Await(member, [&](std::chrono::milliseconds limit) { return buffers.out->waitSend(limit); });
      if (!status.ok()) return status;
      buffers.sending = false;
    }
    return Status();
  }

  Job* const job_;
  const Members& members_;
  const int64_t slot_bytes_;
  std::unique_ptr<Mesh> mesh_;
  const std::unique_ptr<Machines> machines_;
  std::vector<uint8_t> memory_;
  std::vector<SlotBuffers> buffers_;  // by member and slot
};

// The layout, and the shared memory of this machine if its processes can share any.
Status MakeMachines(Job* job, const Members& members, const std::string& name, std::unique_ptr<Machines>* machines) {
  std::unique_ptr<Machines> made(new Machines);
  made->layout = MakeMachineLayout(*job, members);
  const int machine = made->layout.machine_of[members.self];
  made->inside.self = made->layout.place_of[members.self];
  for (int member : made->layout.members[machine]) {
    const int process = members.processes[member];
    made->inside.processes.push_back(process);
    made->inside.ranks_of.push_back(members.ranks_of[member]);
    made->inside.rank_process.insert(made->inside.rank_process.end(), members.ranks_of[member].size(), process);
  }
  made->slots.resize(made->inside.num_members());
  // The number of the machine keeps apart what several of them do at the same time.
  Status status = MakeShm(job, made->inside, Format("%s/machine %d", name.c_str(), machine), nullptr, &made->exchange,
                          SlotBytes(members.num_members()));
  if (!status.ok() && status.code() != EPL_FAILED_PRECONDITION) return status;
  *machines = std::move(made);
  return Status();
}

}  // namespace

std::string WhyNoGloo() { return ""; }

Status MakeGloo(Job* job, const Members& members, const std::string& name, bool hierarchical,
                std::unique_ptr<Exchange>* exchange) {
  std::unique_ptr<Machines> machines;
  std::string failure;
  if (hierarchical) failure = MakeMachines(job, members, name, &machines).message();
  StallWatch watch(job, members.processes, -1, job->NameOf(job->process()),
                   "the connections of communicator '" + name + "'");
  std::unique_ptr<Mesh> mesh;
  std::string addresses;
  try {
    // The address by which TF_CONFIG names this process is the one that the others can reach.
    const std::string host = job->HostOf(job->process());
    gloo::transport::tcp::attr attributes(host.c_str());
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
    mesh.reset(new Mesh(members.self, members.num_members(), device));
    addresses = mesh->Addresses();
  } catch (const std::exception& error) {
    failure = std::string("cannot listen for Gloo: ") + error.what();
  }
  std::vector<std::string> all;
  auto agree = [&](const std::string& step, const std::string& bytes) {
    Status status =
        job->Gather(step + name, members.processes, Writer().PutBytes(failure).PutBytes(bytes).bytes(), &watch, &all);
    for (int member = 0; status.ok() && member < members.num_members(); ++member) {
      const std::string words{Reader(all[member]).GetBytes()};
      if (!words.empty()) status = Status(EPL_INTERNAL, job->NameOf(members.processes[member]) + ": " + words);
    }
    return status;
  };
  Status status = agree("gloo-addresses/", addresses);
  if (!status.ok()) return status;
  try {
    for (int member = 0; member < members.num_members(); ++member) {
      if (member == members.self) continue;
      Reader reader(all[member]);
      reader.GetBytes();
      mesh->Connect(member, std::string(reader.GetBytes()));
    }
  } catch (const std::exception& error) {
    failure = std::string("cannot connect for Gloo: ") + error.what();
  }
  status = agree("gloo-connected/", "");
  if (!status.ok()) return status;
  exchange->reset(new GlooExchange(job, members, std::move(mesh), std::move(machines)));
  return Status();
}

}  // namespace epl
