// Slots over Gloo. Only Gloo's connections and point-to-point messages are used: the programs are ours, so that sums
// have the same order as over any other transport, and nothing is sent before all have passed the gate, so that no
// message is ever left over. The hierarchical transport is this one, with the processes of a machine next to each
// other: they show their slots in shared memory, from which Gloo sends to the other machines.

#include "comm/exchange_gloo.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <stdexcept>

#include "comm/exchange_shm.h"
#include "comm/gloo_network.h"
#include "comm/wire.h"

namespace epl {
namespace {

constexpr int kSlots = 4;
constexpr double kConnectSeconds = 60;

int64_t SlotBytes(int members) {
  const int64_t wanted = std::min<int64_t>(1 << 20, std::max<int64_t>(128 << 10, (16 << 20) / members));
  return (wanted + 64 * members - 1) / (64 * members) * (64 * members);
}

// The library, opened once.
class Library {
 public:
  static const Library& Get() {
    static const Library* library = new Library;
    return *library;
  }
  GlooListen listen() const { return listen_; }
  const std::string& why_not() const { return why_not_; }

 private:
  Library() {
    const char* unneeded = "; processes of one machine do not need it";
    Dl_info self;
    std::string path;
    if (dladdr(reinterpret_cast<void*>(&Library::Get), &self) != 0) path = self.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + kGlooLibrary;
    if (access(path.c_str(), F_OK) != 0) {
      why_not_ = std::string("not built: install libgloo-dev (apt-get install libgloo-dev) and build again") + unneeded;
      return;
    }
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) listen_ = reinterpret_cast<GlooListen>(dlsym(library, kGlooListen));
    if (listen_ == nullptr) {
      why_not_ = path + " cannot be used (" + dlerror() + "): install Gloo (apt-get install libgloo0), or build again" +
                 unneeded;
    }
  }

  GlooListen listen_ = nullptr;
  std::string why_not_;
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
  GlooExchange(Job* job, const Members& members, std::unique_ptr<GlooNetwork> network,
               std::unique_ptr<Machines> machines)
      : job_(job),
        members_(members),
        slot_bytes_(SlotBytes(members.num_members())),
        network_(std::move(network)),
        machines_(std::move(machines)) {
    memory_.resize(members_.num_members() * kSlots * slot_bytes_);
    for (int member = 0; member < members_.num_members(); ++member) {
      for (int slot = 0; slot < kSlots; ++slot) {
        buffers_.emplace_back();
        if (!ByGloo(member)) continue;
        buffers_.back().out = network_->MakeBuffer(OwnMemory(slot), slot_bytes_);
        buffers_.back().in = network_->MakeBuffer(Memory(member, slot), slot_bytes_);
      }
    }
  }

  ~GlooExchange() override {
    network_->Close();
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
          buffers.in->Receive(member, step, in.offset, in.size);
          buffers.receiving = true;
        }
        Block out = program.Sent(index, members_.self, member);
        if (out.size > 0) {
          buffers.out->Send(member, step, out.offset, out.size);
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
      Status status = Await(member, [&](std::chrono::milliseconds limit) { return buffers.in->AwaitReceived(limit); });
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
      buffers.in->AbortReceive();
      buffers.out->AbortSend();
    }
  }

 private:
  // Between this process and another, for one slot.
  struct SlotBuffers {
    std::unique_ptr<GlooBuffer> in;
    std::unique_ptr<GlooBuffer> out;
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
      Status status = Await(member, [&](std::chrono::milliseconds limit) { return buffers.out->AwaitSent(limit); });
      if (!status.ok()) return status;
      buffers.sending = false;
    }
    return Status();
  }

  Job* const job_;
  const Members& members_;
  const int64_t slot_bytes_;
  std::unique_ptr<GlooNetwork> network_;
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

// Where each other process is to connect to, by process.
std::string AddressesFor(const Members& members, GlooNetwork* network) {
  Writer writer;
  for (int member = 0; member < members.num_members(); ++member) {
    writer.PutBytes(member == members.self ? "" : network->AddressFor(member));
  }
  return writer.bytes();
}

// This process's among another's addresses.
std::string OwnAddress(const Members& members, std::string_view addresses) {
  Reader reader(addresses);
  std::string_view address;
  for (int member = 0; member <= members.self; ++member) address = reader.GetBytes();
  if (!reader.ok() || address.empty()) throw std::runtime_error("an address arrived damaged");
  return std::string(address);
}

}  // namespace

std::string WhyNoGloo() { return Library::Get().why_not(); }

Status MakeGloo(Job* job, const Members& members, const std::string& name, bool hierarchical,
                std::unique_ptr<Exchange>* exchange) {
  std::unique_ptr<Machines> machines;
  std::string failure;
  if (hierarchical) failure = MakeMachines(job, members, name, &machines).message();
  StallWatch watch(job, members.processes, -1, job->NameOf(job->process()),
                   "the connections of communicator '" + name + "'");
  std::unique_ptr<GlooNetwork> network;
  std::string addresses;
  if (failure.empty()) failure = WhyNoGloo();
  if (failure.empty()) {
    try {
      // The address by which TF_CONFIG names this process is the one that the others can reach.
      const std::string host = job->HostOf(job->process());
      network.reset(Library::Get().listen()(host.c_str(), members.self, members.num_members(), kConnectSeconds));
      addresses = AddressesFor(members, network.get());
    } catch (const std::exception& error) {
      failure = std::string("cannot listen for Gloo: ") + error.what();
    }
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
      network->Connect(member, OwnAddress(members, reader.GetBytes()));
    }
  } catch (const std::exception& error) {
    failure = std::string("cannot connect for Gloo: ") + error.what();
  }
  status = agree("gloo-connected/", "");
  if (!status.ok()) return status;
  exchange->reset(new GlooExchange(job, members, std::move(network), std::move(machines)));
  return Status();
}

}  // namespace epl
