// Shared memory between processes: the gate is one atomic word, a slot is a piece of the segment.
//
//   | header | line of member 0 | line 1 | ... | announcements 0 | 1 | ... | slots of member 0 | slots 1 | ... |
//
// Slots are used in turn. A process fills at most one step ahead of the one that it drains, and drains a step only when
// all have posted it. So when it fills step s, all have posted s - 2, hence drained s - 4: four slots never collide.

#include "comm/exchange_shm.h"

#include <string.h>
#include <unistd.h>

#include <thread>

#include "comm/shm_segment.h"
#include "comm/wire.h"

namespace epl {
namespace {

constexpr int kSlots = 4;
constexpr int64_t kSlotBytes = 256 << 10;
constexpr double kSpin = 50e-6;
constexpr int64_t kPage = 4096;

int64_t RoundUp(int64_t size, int64_t to) { return (size + to - 1) / to * to; }

struct Header {
  uint64_t token;
  alignas(128) std::atomic<uint64_t> entered;  // collective << 16 | number of processes that entered it
  ShmWord opened;                              // changes when the last one enters
};

// What one member shows of itself.
struct Line {
  ShmWord posted;                  // the number of steps whose slots it has filled
  std::atomic<uint64_t> waits_in;  // 1 + the collective that it has entered; 0: none
};

struct Layout {
  int members = 0;
  int64_t announcement_bytes = 0;
  int64_t slot_bytes = 0;

  Layout(const Members& who, int64_t wanted_slot_bytes) : members(who.num_members()) {
    announcement_bytes = RoundUp(8 + Announcement::MaxSize(who), 128);
    slot_bytes = RoundUp(wanted_slot_bytes, 64 * members);
  }
  int64_t lines_at() const { return RoundUp(sizeof(Header), 128); }
  int64_t announcements_at() const { return lines_at() + members * RoundUp(sizeof(Line), 128); }
  int64_t slots_at() const { return RoundUp(announcements_at() + members * 2 * announcement_bytes, kPage); }
  int64_t size() const { return slots_at() + members * kSlots * slot_bytes; }
};

// The segment with names for its parts.
class Shared {
 public:
  Shared(std::unique_ptr<ShmSegment> segment, const Layout& layout) : segment_(std::move(segment)), layout_(layout) {}

  const Layout& layout() const { return layout_; }
  Header* header() const { return reinterpret_cast<Header*>(segment_->data()); }
  Line* line(int member) const {
    return reinterpret_cast<Line*>(segment_->data() + layout_.lines_at() + member * RoundUp(sizeof(Line), 128));
  }
  uint8_t* announcement(int member, uint64_t collective) const {
    return segment_->data() + layout_.announcements_at() + (member * 2 + collective % 2) * layout_.announcement_bytes;
  }
  uint8_t* slot(int member, uint64_t step) const {
    return segment_->data() + layout_.slots_at() + (member * kSlots + step % kSlots) * layout_.slot_bytes;
  }
  void Wake() const {
    header()->opened.Wake();
    for (int member = 0; member < layout_.members; ++member) line(member)->posted.Wake();
  }

 private:
  std::unique_ptr<ShmSegment> segment_;
  const Layout layout_;
};

// "ranks 2, 3 of worker 1 (host:port)"
std::string NameMember(Job* job, const Members& members, int member) {
  std::string ranks;
  for (int rank : members.ranks_of[member]) ranks += (ranks.empty() ? "" : ", ") + Format("%d", rank);
  return Format("%s %s of %s", members.ranks_of[member].size() == 1 ? "rank" : "ranks", ranks.c_str(),
                job->NameOf(members.processes[member]).c_str());
}

class ShmGate : public Gate {
 public:
  ShmGate(Job* job, const Members& members, std::shared_ptr<Shared> shared, double spin)
      : job_(job), members_(members), shared_(std::move(shared)), spin_(spin) {}

  Status Pass(const std::string& announcement, StallWatch* watch, std::vector<std::string>* all) override {
    uint8_t* own = shared_->announcement(members_.self, collective_);
    int64_t size = announcement.size();
    memcpy(own, &size, sizeof(size));
    memcpy(own + sizeof(size), announcement.data(), size);

    Line* line = shared_->line(members_.self);
    line->waits_in.store(collective_ + 1, std::memory_order_relaxed);
    Enter();
    Status status;
    auto give_up = [&] {
      status = watch->Check([&] { return Missing(); });
      return !status.ok();
    };
    if (!WaitFor(
            &shared_->header()->opened, spin_, [&] { return Opened(); }, give_up) &&
        !Withdraw()) {
      // One that waited too long is not the one that the others are to look for.
      if (status.code() != EPL_DEADLINE_EXCEEDED) line->waits_in.store(0, std::memory_order_relaxed);
      return status;
    }
    all->resize(members_.num_members());
    for (int member = 0; member < members_.num_members(); ++member) {
      const uint8_t* from = shared_->announcement(member, collective_);
      memcpy(&size, from, sizeof(size));
      if (size < 0 || size > shared_->layout().announcement_bytes - static_cast<int64_t>(sizeof(size))) {
        return Status(EPL_INTERNAL, NameMember(job_, members_, member) + " announces what makes no sense");
      }
      (*all)[member].assign(reinterpret_cast<const char*>(from) + sizeof(size), size);
    }
    ++collective_;
    return Status();
  }

  void Wake() override { shared_->Wake(); }

 private:
  uint64_t num_members() const { return members_.num_members(); }

  bool Opened() const {
    uint64_t entered = shared_->header()->entered.load(std::memory_order_acquire);
    return entered >> 16 > collective_ || (entered >> 16 == collective_ && (entered & 0xffff) == num_members());
  }

  void Enter() {
    std::atomic<uint64_t>& word = shared_->header()->entered;
    uint64_t seen = word.load(std::memory_order_acquire);
    uint64_t next;
    do {
      next = seen >> 16 == collective_ ? seen + 1 : collective_ << 16 | 1;
    } while (!word.compare_exchange_weak(seen, next, std::memory_order_acq_rel));
    if ((next & 0xffff) == num_members()) shared_->header()->opened.Publish(static_cast<uint32_t>(collective_ + 1));
  }

  // True if it was too late: all have entered.
  bool Withdraw() {
    std::atomic<uint64_t>& word = shared_->header()->entered;
    uint64_t seen = word.load(std::memory_order_acquire);
    do {
      if (Opened()) return true;
    } while (!word.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel));
    return false;
  }

  std::string Missing() const {
    std::string text;
    for (int member = 0; member < members_.num_members(); ++member) {
      if (shared_->line(member)->waits_in.load(std::memory_order_relaxed) == collective_ + 1) continue;
      text += (text.empty() ? "" : "; ") + NameMember(job_, members_, member);
    }
    return text.empty() ? "none" : text;
  }

  Job* const job_;
  const Members& members_;
  const std::shared_ptr<Shared> shared_;
  const double spin_;
  uint64_t collective_ = 0;  // how many all have entered
};

class ShmExchange : public Exchange {
 public:
  ShmExchange(Job* job, const Members& members, std::shared_ptr<Shared> shared, double spin, bool has_gate)
      : job_(job), members_(members), shared_(std::move(shared)), spin_(spin), has_gate_(has_gate) {}

  const char* name() const override { return "shm"; }
  int64_t slot_bytes() const override { return shared_->layout().slot_bytes; }
  bool FilledBeforeGate() const override { return has_gate_; }

  Status OwnSlot(uint64_t step, StallWatch*, uint8_t** slot) override {
    *slot = shared_->slot(members_.self, step);
    return Status();
  }

  Status Post(uint64_t step, const Program&, int64_t) override {
    shared_->line(members_.self)->posted.Publish(static_cast<uint32_t>(step + 1));
    return Status();
  }

  Status Wait(uint64_t step, const Program&, int64_t index, StallWatch* watch, const uint8_t** slots) override {
    for (int member = 0; member < members_.num_members(); ++member) {
      slots[member] = shared_->slot(member, step);
      if (member == members_.self || (index == 0 && has_gate_)) continue;  // the first were filled before the gate
      ShmWord* posted = &shared_->line(member)->posted;
      Status status;
      auto ready = [&] {
        return static_cast<int32_t>(posted->value.load(std::memory_order_acquire) - static_cast<uint32_t>(step)) > 0;
      };
      auto give_up = [&] {
        status = watch->Check([&] { return NameMember(job_, members_, member); });
        return !status.ok();
      };
      if (!WaitFor(posted, spin_, ready, give_up)) return status;
    }
    return Status();
  }

  void Wake() override { shared_->Wake(); }

 private:
  Job* const job_;
  const Members& members_;
  const std::shared_ptr<Shared> shared_;
  const double spin_;
  const bool has_gate_;
};

}  // namespace

Status MakeShm(Job* job, const Members& members, const std::string& name, std::unique_ptr<Gate>* gate,
               std::unique_ptr<Exchange>* exchange, int64_t slot_bytes) {
  const Layout layout(members, slot_bytes > 0 ? slot_bytes : kSlotBytes);
  const std::string what = "the shared memory of communicator '" + name + "'";
  StallWatch watch(job, members.processes, -1, job->NameOf(job->process()), what);

  // The first member makes the segment, the others open it where it says.
  std::unique_ptr<ShmSegment> segment;
  Status own;
  std::string path;
  const uint64_t token = job->id() * 31 + static_cast<uint64_t>(layout.size());
  if (members.self == 0) {
    own = ShmSegment::Create(layout.size(), &segment);
    if (own.ok()) {
      path = segment->path();
      reinterpret_cast<Header*>(segment->data())->token = token;
    }
  }
  std::vector<std::string> all;
  Status status = job->Gather("shm-make/" + name, members.processes,
                              Writer().PutBytes(BootId()).PutBytes(path).PutBytes(own.message()).bytes(), &watch, &all);
  if (!status.ok()) return status;
  Reader first(all[0]);
  const std::string machine(first.GetBytes());
  path = std::string(first.GetBytes());
  const std::string failure(first.GetBytes());
  if (!failure.empty()) return Status(EPL_INTERNAL, failure);
  for (int member = 1; member < members.num_members(); ++member) {
    if (Reader(all[member]).GetBytes() != machine) {
      return Status(EPL_FAILED_PRECONDITION, job->NameOf(members.processes[0]) + " and " +
                                                 job->NameOf(members.processes[member]) +
                                                 " run on different machines and cannot share memory");
    }
  }
  if (members.self != 0) {
    own = ShmSegment::Open(path, layout.size(), &segment);
    if (own.ok() && reinterpret_cast<Header*>(segment->data())->token != token) {
      own = Status(EPL_FAILED_PRECONDITION, path + " is not the shared memory of this job (another pid namespace?)");
    }
  }
  status = job->Gather("shm-open/" + name, members.processes, own.message(), &watch, &all);
  if (!status.ok()) return status;
  for (int member = 0; member < members.num_members(); ++member) {
    if (!all[member].empty()) {
      return Status(EPL_FAILED_PRECONDITION, job->NameOf(members.processes[member]) + ": " + all[member]);
    }
  }
  segment->Seal();

  // With more processes than processors, spinning would keep the awaited process from running.
  const double spin = members.num_members() <= static_cast<int>(std::thread::hardware_concurrency()) ? kSpin : 0;
  std::shared_ptr<Shared> shared(new Shared(std::move(segment), layout));
  if (gate != nullptr) gate->reset(new ShmGate(job, members, shared, spin));
  exchange->reset(new ShmExchange(job, members, shared, spin, gate != nullptr));
  return Status();
}

}  // namespace epl
