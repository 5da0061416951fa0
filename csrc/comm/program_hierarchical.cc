// The hierarchical programs. Their phases are pipelined: the data passes in chunks, and one step carries the first
// phase of one chunk, the second phase of an earlier chunk, and so on, each in an area of its own in the slot.
//
//   step        0    1    2    3    4    5    6     of an all_reduce over two machines
//   scatter    c0   c1   c2   c3                    inside: c0 = chunk 0
//   across               c0   c1   c2   c3          between the members of equal place
//   gather                         c0   c1   c2 ..  inside
//
// A chunk rests one step between two phases, so that the next step can be filled before a step is drained.

#include "comm/program_hierarchical.h"

#include <string.h>

#include <algorithm>

#include "comm/program_base.h"

namespace epl {
namespace {

// Up to here two more hops inside machines take longer than sending as much again between them: 4 KB over 1 Gbit/s
// took 1.1 times as long by way of shards.
constexpr int64_t kFlatBroadcastBytes = 4 << 10;

// The part of a slot that holds both; empty ones do not count.
Block Cover(Block a, Block b) {
  if (a.size <= 0) return b;
  if (b.size <= 0) return a;
  Block both;
  both.offset = std::min(a.offset, b.offset);
  both.size = std::max(a.offset + a.size, b.offset + b.size) - both.offset;
  return both;
}

Block BlockOf(int64_t begin, int64_t count, int64_t element) {
  Block block;
  block.offset = begin * element;
  block.size = std::max<int64_t>(0, count) * element;
  return block;
}

int64_t Clamp(int64_t count, int64_t most) { return std::max<int64_t>(0, std::min(count, most)); }

// The steps of phases over chunks.
class Pipeline {
 public:
  void Set(int64_t chunks, int phases) {
    chunks_ = chunks;
    phases_ = phases;
    rest_ = chunks > 1 ? 2 : 1;
  }
  int64_t steps() const { return chunks_ == 0 ? 0 : chunks_ + (phases_ - 1) * rest_; }
  bool NeedsDrain() const { return rest_ == 1; }
  // The chunk that is in `phase` in a step; -1: none.
  int64_t ChunkIn(int64_t step, int phase) const {
    const int64_t chunk = step - phase * rest_;
    return chunk < chunks_ ? std::max<int64_t>(-1, chunk) : -1;
  }

 private:
  int64_t chunks_ = 0;
  int phases_ = 1;
  int64_t rest_ = 1;
};

// Where this process sits.
struct Seat {
  Seat(const Members& members, const MachineLayout& layout)
      : machines(layout),
        num_machines(layout.num_machines()),
        num_places(layout.num_places()),
        machine(layout.machine_of[members.self]),
        place(layout.place_of[members.self]) {}

  int inside(int at) const { return machines.members[machine][at]; }      // a member of this machine
  int across(int other) const { return machines.members[other][place]; }  // the member of this place on a machine

  const MachineLayout& machines;
  const int num_machines;
  const int num_places;
  const int machine;
  const int place;
};

// all_reduce and reduce. Where `scatters_` each process reduces a part of its shard across machines and shows it to the
// others of its place; else they all show their whole shards, which is one phase less.
//
//   slot   | chunk: a shard for each place | reduced shard | for each machine: part to reduce, reduced part |
class HierarchicalReduce : public FusedReduce {
 public:
  HierarchicalReduce(const Op& op, const Members& members, int64_t slot_bytes, const MachineLayout& machines)
      : FusedReduce(op, members, slot_bytes), seat_(members, machines) {
    const int64_t bytes = buffers_.total() * element_;
    const int64_t places = seat_.num_places, across = seat_.num_machines;
    root_machine_ = args_.kind == EPL_REDUCE ? machines.machine_of[members.member_of(args_.root)] : -1;
    scatters_ = args_.kind == EPL_ALL_REDUCE && across > 2 && bytes > kSmallBytes * places;
    const int64_t parts = scatters_ ? across : 1;  // of a shard
    const int64_t most = slot_bytes / ((places + (scatters_ ? 3 : 2)) * parts);
    part_ = EvenPiece(bytes, places * parts, most);
    shard_ = part_ * parts;
    chunk_ = shard_ * places;
    pipeline_.Set(DivideUp(buffers_.total(), chunk_), scatters_ ? 4 : 3);
    for (int i = 0; i < 2; ++i) {
      inside_[i].resize(shard_ * element_);
      reduced_[i].resize(shard_ * element_);
      part_reduced_[i].resize(scatters_ ? part_ * element_ : 0);
    }
  }

  int64_t steps() const override { return pipeline_.steps(); }
  bool NeedsDrain(int64_t) const override { return pipeline_.NeedsDrain(); }

  void Fill(int64_t step, uint8_t* slot) override {
    int64_t chunk = pipeline_.ChunkIn(step, gather());
    if (chunk >= 0) Copy(slot, gather_at(), reduced_[chunk % 2].data(), ShardCount(chunk, seat_.place));
    chunk = scatters_ ? pipeline_.ChunkIn(step, 2) : -1;
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      Copy(slot, ReducedPartAt(machine), part_reduced_[chunk % 2].data(), PartCount(chunk, seat_.place, seat_.machine));
    }
    chunk = pipeline_.ChunkIn(step, 1);
    if (chunk >= 0 && !scatters_) Copy(slot, across_at(), inside_[chunk % 2].data(), ShardCount(chunk, seat_.place));
    for (int machine = 0; chunk >= 0 && scatters_ && machine < seat_.num_machines; ++machine) {
      Copy(slot, PartAt(machine), inside_[chunk % 2].data() + machine * part_ * element_,
           PartCount(chunk, seat_.place, machine));
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk < 0) return;
    buffers_.ForRange(chunk * chunk_, (chunk + 1) * chunk_,
                      [&](int buffer, int64_t at, int64_t count, int64_t position) {
                        ReduceLocal(buffer, at, count, slot + position * element_);
                      });
  }

  Block Sent(int64_t step, int from, int to) const override {
    const MachineLayout& machines = seat_.machines;
    const int to_machine = machines.machine_of[to], place = machines.place_of[from];
    if (machines.machine_of[from] == to_machine) {
      Block scattered, gathered;
      int64_t chunk = pipeline_.ChunkIn(step, 0);
      const int to_place = machines.place_of[to];
      if (chunk >= 0) scattered = BlockOf(to_place * shard_, ShardCount(chunk, to_place), element_);
      chunk = pipeline_.ChunkIn(step, gather());
      const bool wanted = root_machine_ < 0 || members_.member_of(args_.root) == to;
      if (chunk >= 0 && wanted) gathered = BlockOf(gather_at(), ShardCount(chunk, place), element_);
      return Cover(scattered, gathered);
    }
    if (place != machines.place_of[to] || (root_machine_ >= 0 && root_machine_ != to_machine)) return Block();
    int64_t chunk = pipeline_.ChunkIn(step, 1);
    if (!scatters_) return chunk < 0 ? Block() : BlockOf(across_at(), ShardCount(chunk, place), element_);
    Block part, reduced;
    if (chunk >= 0) part = BlockOf(PartAt(to_machine), PartCount(chunk, place, to_machine), element_);
    chunk = pipeline_.ChunkIn(step, 2);
    if (chunk >= 0) {
      reduced = BlockOf(ReducedPartAt(to_machine), PartCount(chunk, place, machines.machine_of[from]), element_);
    }
    return Cover(part, reduced);
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    // The last phase first: each hands its buffers over to the one after it.
    int64_t chunk = pipeline_.ChunkIn(step, gather());
    if (chunk >= 0 && !targets_.empty()) CopyToOutputs(chunk, slots);
    chunk = scatters_ ? pipeline_.ChunkIn(step, 2) : -1;
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      const uint8_t* from = machine == seat_.machine
                                ? part_reduced_[chunk % 2].data()
                                : slots[seat_.across(machine)] + ReducedPartAt(seat_.machine) * element_;
      memcpy(reduced_[chunk % 2].data() + machine * part_ * element_, from,
             PartCount(chunk, seat_.place, machine) * element_);
    }
    chunk = pipeline_.ChunkIn(step, 1);
    if (chunk >= 0 && (root_machine_ < 0 || root_machine_ == seat_.machine)) {
      for (int machine = 0; machine < seat_.num_machines; ++machine) {
        sources_[machine] = slots[seat_.across(machine)] + (scatters_ ? PartAt(seat_.machine) : across_at()) * element_;
      }
      if (scatters_) {
        ReduceSources(seat_.num_machines, PartCount(chunk, seat_.place, seat_.machine),
                      part_reduced_[chunk % 2].data());
      } else {
        ReduceSources(seat_.num_machines, ShardCount(chunk, seat_.place), reduced_[chunk % 2].data());
      }
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk < 0) return;
    for (int place = 0; place < seat_.num_places; ++place) {
      sources_[place] = slots[seat_.inside(place)] + seat_.place * shard_ * element_;
    }
    ReduceSources(seat_.num_places, ShardCount(chunk, seat_.place), inside_[chunk % 2].data());
  }

 private:
  int gather() const { return scatters_ ? 3 : 2; }  // the last phase
  // Where the areas of the slot begin, in elements.
  int64_t gather_at() const { return chunk_; }
  int64_t across_at() const { return chunk_ + shard_; }
  int64_t PartAt(int machine) const { return across_at() + 2 * machine * part_; }
  int64_t ReducedPartAt(int machine) const { return PartAt(machine) + part_; }

  int64_t ShardCount(int64_t chunk, int place) const {
    return Clamp(buffers_.total() - chunk * chunk_ - place * shard_, shard_);
  }
  int64_t PartCount(int64_t chunk, int place, int machine) const {
    return Clamp(ShardCount(chunk, place) - machine * part_, part_);
  }
  void Copy(uint8_t* slot, int64_t at, const uint8_t* from, int64_t count) const {
    if (count > 0) memcpy(slot + at * element_, from, count * element_);
  }
  void CopyToOutputs(int64_t chunk, const uint8_t* const* slots) {
    for (int place = 0; place < seat_.num_places; ++place) {
      const uint8_t* shard = slots[seat_.inside(place)] + gather_at() * element_;
      const int64_t begin = chunk * chunk_ + place * shard_;
      buffers_.ForRange(begin, begin + shard_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
        for (int target : targets_) memcpy(Output(target, buffer, at), shard + position * element_, count * element_);
      });
    }
  }

  const Seat seat_;
  int root_machine_;  // reduce: the machine of the root; else -1
  bool scatters_;
  int64_t part_;   // elements of a shard that one machine reduces
  int64_t shard_;  // elements of a chunk that one place reduces
  int64_t chunk_;
  Pipeline pipeline_;
  // By chunk % 2: a shard reduced over this machine, the part of it reduced over all, the shard reduced over all.
  std::vector<uint8_t> inside_[2], part_reduced_[2], reduced_[2];
};

//   slot   | chunk of the root | shard for the others of the machine | shard for those of the place |
class HierarchicalBroadcast : public BufferProgram {
 public:
  HierarchicalBroadcast(const Op& op, const Members& members, int64_t slot_bytes, const MachineLayout& machines)
      : BufferProgram(op, members, slot_bytes),
        seat_(members, machines),
        source_(members.member_of(args_.root)),
        source_machine_(machines.machine_of[source_]) {
    for (int i = 0; i < args_.num_buffers; ++i) buffers_.Add(args_.counts[i]);
    for (int local = 0; local < num_local(); ++local) {
      if (op.requests[local]->rank == args_.root) root_local_ = local;
    }
    const int64_t places = seat_.num_places;
    shard_ = EvenPiece(buffers_.total() * element_, places, slot_bytes / (places + 2));
    chunk_ = shard_ * places;
    pipeline_.Set(DivideUp(buffers_.total(), chunk_), 3);
    for (auto& shard : shards_) shard.resize(shard_ * element_);
  }

  int64_t steps() const override { return pipeline_.steps(); }
  bool NeedsDrain(int64_t) const override { return pipeline_.NeedsDrain(); }

  void Fill(int64_t step, uint8_t* slot) override {
    const bool at_source = seat_.machine == source_machine_;
    int64_t chunk = pipeline_.ChunkIn(step, at_source ? 1 : 2);
    if (chunk >= 0) {
      memcpy(slot + (at_source ? across_at() : gather_at()) * element_, shards_[chunk % 2].data(),
             ShardCount(chunk, seat_.place) * element_);
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk < 0 || root_local_ < 0) return;
    buffers_.ForRange(chunk * chunk_, (chunk + 1) * chunk_,
                      [&](int buffer, int64_t at, int64_t count, int64_t position) {
                        memcpy(slot + position * element_, Input(root_local_, buffer, at), count * element_);
                      });
  }

  Block Sent(int64_t step, int from, int to) const override {
    const MachineLayout& machines = seat_.machines;
    const bool at_source = machines.machine_of[from] == source_machine_;
    const int place = machines.place_of[from];
    if (machines.machine_of[from] != machines.machine_of[to]) {
      const int64_t chunk = at_source && place == machines.place_of[to] ? pipeline_.ChunkIn(step, 1) : -1;
      return chunk < 0 ? Block() : BlockOf(across_at(), ShardCount(chunk, place), element_);
    }
    if (at_source) {
      const int64_t chunk = from == source_ ? pipeline_.ChunkIn(step, 0) : -1;
      return chunk < 0 ? Block() : BlockOf(0, Clamp(buffers_.total() - chunk * chunk_, chunk_), element_);
    }
    const int64_t chunk = pipeline_.ChunkIn(step, 2);
    return chunk < 0 ? Block() : BlockOf(gather_at(), ShardCount(chunk, place), element_);
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    if (seat_.machine == source_machine_) {
      const int64_t chunk = pipeline_.ChunkIn(step, 0);
      if (chunk < 0) return;
      const uint8_t* shard = slots[source_] + seat_.place * shard_ * element_;
      memcpy(shards_[chunk % 2].data(), shard, ShardCount(chunk, seat_.place) * element_);
      CopyToOutputs(chunk * chunk_, chunk_, slots[source_]);
      return;
    }
    int64_t chunk = pipeline_.ChunkIn(step, 2);
    for (int place = 0; chunk >= 0 && place < seat_.num_places; ++place) {
      CopyToOutputs(chunk * chunk_ + place * shard_, shard_, slots[seat_.inside(place)] + gather_at() * element_);
    }
    chunk = pipeline_.ChunkIn(step, 1);
    if (chunk < 0) return;
    memcpy(shards_[chunk % 2].data(), slots[seat_.across(source_machine_)] + across_at() * element_,
           ShardCount(chunk, seat_.place) * element_);
  }

 private:
  int64_t gather_at() const { return chunk_; }
  int64_t across_at() const { return chunk_ + shard_; }
  int64_t ShardCount(int64_t chunk, int place) const {
    return Clamp(buffers_.total() - chunk * chunk_ - place * shard_, shard_);
  }
  void CopyToOutputs(int64_t begin, int64_t size, const uint8_t* data) {
    buffers_.ForRange(begin, begin + size, [&](int buffer, int64_t at, int64_t count, int64_t position) {
      for (int local = 0; local < num_local(); ++local) {
        // The root's own output may be its input.
        const uint8_t* from = root_local_ >= 0 ? Input(root_local_, buffer, at) : data + position * element_;
        uint8_t* to = Output(local, buffer, at);
        if (to != from) memcpy(to, from, count * element_);
      }
    });
  }

  const Seat seat_;
  const int source_;  // the member of the root
  const int source_machine_;
  int root_local_ = -1;
  Runs buffers_;
  int64_t shard_;  // elements of a chunk that one place sends to the other machines
  int64_t chunk_;
  Pipeline pipeline_;
  std::vector<uint8_t> shards_[2];  // by chunk % 2
};

//   slot   | for each place and machine: a piece of that member's rows | for each machine: the piece, reduced inside |
class HierarchicalReduceScatter : public ScatteringProgram {
 public:
  HierarchicalReduceScatter(const Op& op, const Members& members, int64_t slot_bytes, const MachineLayout& machines)
      : ScatteringProgram(op, members, slot_bytes), seat_(members, machines) {
    const int64_t areas = (seat_.num_places + 1) * seat_.num_machines;
    piece_ = ElementsIn(slot_bytes / areas);
    pipeline_.Set(DivideUp(most(), piece_), 2);
    for (auto& pieces : inside_) pieces.resize(seat_.num_machines * piece_ * element_);
  }

  int64_t steps() const override { return pipeline_.steps(); }
  bool NeedsDrain(int64_t) const override { return pipeline_.NeedsDrain(); }

  void Fill(int64_t step, uint8_t* slot) override {
    int64_t chunk = pipeline_.ChunkIn(step, 1);
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      memcpy(slot + AcrossAt(machine) * element_, inside_[chunk % 2].data() + machine * piece_ * element_,
             Count(chunk, seat_.across(machine)) * element_);
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk < 0) return;
    for (int to = 0; to < num_members(); ++to) {
      ForPart(to, chunk * piece_, piece_, [&](int64_t at, int64_t count, int64_t position) {
        ReduceLocal(0, at, count, slot + (InsideAt(to) + position) * element_);
      });
    }
  }

  Block Sent(int64_t step, int from, int to) const override {
    const MachineLayout& machines = seat_.machines;
    if (machines.machine_of[from] == machines.machine_of[to]) {
      Block block;
      const int64_t chunk = pipeline_.ChunkIn(step, 0);
      if (chunk < 0) return block;
      for (const std::vector<int>& ranks : machines.members) {
        const int target = ranks[machines.place_of[to]];
        block = Cover(block, BlockOf(InsideAt(target), Count(chunk, target), element_));
      }
      return block;
    }
    const int64_t chunk = machines.place_of[from] == machines.place_of[to] ? pipeline_.ChunkIn(step, 1) : -1;
    return chunk < 0 ? Block() : BlockOf(AcrossAt(machines.machine_of[to]), Count(chunk, to), element_);
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    int64_t chunk = pipeline_.ChunkIn(step, 1);
    if (chunk >= 0) {
      ForOutput(chunk * piece_, piece_, [&](uint8_t* to, int64_t, int64_t count, int64_t position) {
        for (int machine = 0; machine < seat_.num_machines; ++machine) {
          sources_[machine] = slots[seat_.across(machine)] + (AcrossAt(seat_.machine) + position) * element_;
        }
        ReduceSources(seat_.num_machines, count, to);
      });
    }
    chunk = pipeline_.ChunkIn(step, 0);
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      const int target = seat_.across(machine);
      for (int place = 0; place < seat_.num_places; ++place) {
        sources_[place] = slots[seat_.inside(place)] + InsideAt(target) * element_;
      }
      ReduceSources(seat_.num_places, Count(chunk, target), inside_[chunk % 2].data() + machine * piece_ * element_);
    }
  }

 private:
  // Where the areas of the slot begin, in elements.
  int64_t InsideAt(int target) const {
    const MachineLayout& machines = seat_.machines;
    return (machines.place_of[target] * seat_.num_machines + machines.machine_of[target]) * piece_;
  }
  int64_t AcrossAt(int machine) const { return (seat_.num_places * seat_.num_machines + machine) * piece_; }
  int64_t Count(int64_t chunk, int member) const { return Clamp(parts_[member].total() - chunk * piece_, piece_); }

  const Seat seat_;
  int64_t piece_;  // elements of a member's part that pass in one step
  Pipeline pipeline_;
  std::vector<uint8_t> inside_[2];  // by chunk % 2: for each machine, the piece reduced over this one
};

//   slot   | piece of this process's rows | for each other machine: the piece of the member of this place |
class HierarchicalAllGather : public GatheringProgram {
 public:
  HierarchicalAllGather(const Op& op, const Members& members, int64_t slot_bytes, const MachineLayout& machines)
      : GatheringProgram(op, members, slot_bytes), seat_(members, machines) {
    piece_ = ElementsIn(std::min(4 * kPipelineBytes, slot_bytes / seat_.num_machines));
    for (auto& pieces : across_) pieces.resize(seat_.num_machines * piece_ * element_);
  }

  int64_t steps() const override { return pipeline_.steps(); }
  bool NeedsDrain(int64_t) const override { return pipeline_.NeedsDrain(); }

  void SetRows(const std::vector<Announcement>& all) override {
    GatheringProgram::SetRows(all);
    pipeline_.Set(DivideUp(most(), piece_), 2);
  }

  void Fill(int64_t step, uint8_t* slot) override {
    int64_t chunk = pipeline_.ChunkIn(step, 1);
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      if (machine == seat_.machine) continue;
      memcpy(slot + PassedAt(machine, seat_.machine) * element_,
             across_[chunk % 2].data() + machine * piece_ * element_, Count(chunk, seat_.across(machine)) * element_);
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk >= 0) CopyInputs(chunk * piece_, piece_, slot);
  }

  Block Sent(int64_t step, int from, int to) const override {
    const MachineLayout& machines = seat_.machines;
    const int machine = machines.machine_of[from];
    const bool same_machine = machine == machines.machine_of[to];
    Block own;
    int64_t chunk = pipeline_.ChunkIn(step, 0);
    if (chunk >= 0 && (same_machine || machines.place_of[from] == machines.place_of[to])) {
      own = BlockOf(0, Count(chunk, from), element_);
    }
    chunk = same_machine ? pipeline_.ChunkIn(step, 1) : -1;
    for (int other = 0; chunk >= 0 && other < seat_.num_machines; ++other) {
      if (other == machine) continue;
      const int source = machines.members[other][machines.place_of[from]];
      own = Cover(own, BlockOf(PassedAt(other, machine), Count(chunk, source), element_));
    }
    return own;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    int64_t chunk = pipeline_.ChunkIn(step, 1);
    for (int machine = 0; chunk >= 0 && machine < seat_.num_machines; ++machine) {
      for (int place = 0; machine != seat_.machine && place < seat_.num_places; ++place) {
        if (place == seat_.place) continue;
        const uint8_t* piece = slots[seat_.inside(place)] + PassedAt(machine, seat_.machine) * element_;
        CopyToOutputs(seat_.machines.members[machine][place], chunk * piece_, piece_, piece);
      }
    }
    chunk = pipeline_.ChunkIn(step, 0);
    if (chunk < 0) return;
    for (int place = 0; place < seat_.num_places; ++place) {
      CopyToOutputs(seat_.inside(place), chunk * piece_, piece_, slots[seat_.inside(place)]);
    }
    for (int machine = 0; machine < seat_.num_machines; ++machine) {
      if (machine == seat_.machine) continue;
      const int source = seat_.across(machine);
      memcpy(across_[chunk % 2].data() + machine * piece_ * element_, slots[source], Count(chunk, source) * element_);
      CopyToOutputs(source, chunk * piece_, piece_, slots[source]);
    }
  }

 private:
  // Where the piece that came from a machine begins in the slot of a member of another one, in elements.
  int64_t PassedAt(int from, int self) const { return (from < self ? from + 1 : from) * piece_; }
  int64_t Count(int64_t chunk, int member) const { return Clamp(streams_[member].total() - chunk * piece_, piece_); }

  const Seat seat_;
  int64_t piece_;  // elements of a member's rows that pass in one step
  Pipeline pipeline_;
  std::vector<uint8_t> across_[2];  // by chunk % 2: for each machine, the piece of its member of this place
};

}  // namespace

std::unique_ptr<Program> MakeHierarchicalProgram(const Op& op, const Members& members, int64_t slot_bytes,
                                                 const MachineLayout& machines) {
  std::unique_ptr<Program> program;
  switch (op.args().kind) {
    case EPL_ALL_REDUCE:
    case EPL_REDUCE:
      program.reset(new HierarchicalReduce(op, members, slot_bytes, machines));
      break;
    case EPL_BROADCAST:
      if (BytesOf(op.args()) <= kFlatBroadcastBytes) break;
      program.reset(new HierarchicalBroadcast(op, members, slot_bytes, machines));
      break;
    case EPL_ALL_GATHER:
      program.reset(new HierarchicalAllGather(op, members, slot_bytes, machines));
      break;
    case EPL_REDUCE_SCATTER:
      program.reset(new HierarchicalReduceScatter(op, members, slot_bytes, machines));
      break;
    case EPL_ALL_TO_ALL:
      break;
  }
  return program;
}

}  // namespace epl
