// The programs of the six kinds.

#include "comm/program.h"

#include <string.h>

#include <algorithm>

#include "comm/program_base.h"
#include "comm/program_hierarchical.h"

namespace epl {
namespace {

// Every process shows all it has, and reduces what all show: one round, the least latency.
class DirectReduce : public FusedReduce {
 public:
  DirectReduce(const Op& op, const Members& members, int64_t slot_bytes) : FusedReduce(op, members, slot_bytes) {
    int64_t bytes = buffers_.total() * element_;
    int64_t wanted = std::max(kPipelineBytes, DivideUp(bytes, 4 * kAlign) * kAlign);
    chunk_ = ElementsIn(std::min(wanted, slot_bytes));
  }

  int64_t steps() const override { return DivideUp(buffers_.total(), chunk_); }

  void Fill(int64_t step, uint8_t* slot) override {
    if (alone()) return;
    buffers_.ForRange(step * chunk_, (step + 1) * chunk_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
      ReduceLocal(buffer, at, count, slot + position * element_);
    });
  }

  Block Sent(int64_t step, int, int to) const override {
    if (args_.kind == EPL_REDUCE && members_.member_of(args_.root) != to) return Block();
    Block block;
    block.size = (std::min(buffers_.total(), (step + 1) * chunk_) - step * chunk_) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    if (targets_.empty()) return;
    buffers_.ForRange(step * chunk_, (step + 1) * chunk_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
      uint8_t* first = Output(targets_[0], buffer, at);
      if (alone()) {
        ReduceLocal(buffer, at, count, first);
      } else {
        ReduceSlots(slots, position * element_, count, first);
      }
      for (size_t i = 1; i < targets_.size(); ++i) memcpy(Output(targets_[i], buffer, at), first, count * element_);
    });
  }

 private:
  int64_t chunk_;
};

// Every process reduces its share of each chunk, then shows the result: less work for each where there are many.
//
//   even steps of a chunk: scatter   (slot: the whole chunk;  read: my share of every slot)
//   odd steps:             gather    (slot: my reduced share; read: every share)
//   order: S0 S1 G0 S2 G1 S3 G2 ... so that a gather never waits for the drain just before it
class SharedReduce : public FusedReduce {
 public:
  SharedReduce(const Op& op, const Members& members, int64_t slot_bytes) : FusedReduce(op, members, slot_bytes) {
    int64_t share = std::min(slot_bytes / num_members(), DivideUp(buffers_.total() * element_, num_members()));
    share_ = std::max<int64_t>(1, DivideUp(share, kAlign)) * kAlign;
    if (share_ * num_members() > slot_bytes) share_ = slot_bytes / num_members() / kAlign * kAlign;
    share_ /= element_;
    chunk_ = share_ * num_members();
    chunks_ = DivideUp(buffers_.total(), chunk_);
    for (auto& result : results_) result.resize(share_ * element_);
  }

  int64_t steps() const override { return 2 * chunks_; }
  bool NeedsDrain(int64_t step) const override { return chunks_ == 1 && step == 1; }

  void Fill(int64_t step, uint8_t* slot) override {
    int64_t chunk;
    if (IsGather(step, &chunk)) {
      memcpy(slot, results_[chunk % 2].data(), ShareSize(chunk, members_.self) * element_);
      return;
    }
    buffers_.ForRange(chunk * chunk_, (chunk + 1) * chunk_,
                      [&](int buffer, int64_t at, int64_t count, int64_t position) {
                        ReduceLocal(buffer, at, count, slot + position * element_);
                      });
  }

  Block Sent(int64_t step, int from, int to) const override {
    int64_t chunk;
    Block block;
    bool gather = IsGather(step, &chunk);
    block.offset = gather ? 0 : to * share_ * element_;
    block.size = ShareSize(chunk, gather ? from : to) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    int64_t chunk;
    if (!IsGather(step, &chunk)) {
      int64_t size = ShareSize(chunk, members_.self);
      if (size > 0) ReduceSlots(slots, members_.self * share_ * element_, size, results_[chunk % 2].data());
      return;
    }
    for (int member = 0; member < num_members(); ++member) {
      int64_t begin = chunk * chunk_ + member * share_;
      buffers_.ForRange(begin, begin + share_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
        for (int target : targets_) {
          memcpy(Output(target, buffer, at), slots[member] + position * element_, count * element_);
        }
      });
    }
  }

 private:
  bool IsGather(int64_t step, int64_t* chunk) const {
    if (chunks_ == 1 || step == 0 || step == 2 * chunks_ - 1) {
      *chunk = step == 0 ? 0 : chunks_ - 1;
      return step != 0;
    }
    bool gather = step % 2 == 0;
    *chunk = gather ? step / 2 - 1 : (step + 1) / 2;
    return gather;
  }
  int64_t ShareSize(int64_t chunk, int member) const {
    return std::max<int64_t>(0, std::min(share_, buffers_.total() - chunk * chunk_ - member * share_));
  }

  int64_t share_;  // elements
  int64_t chunk_;
  int64_t chunks_;
  std::vector<uint8_t> results_[2];
};

class Broadcast : public BufferProgram {
 public:
  Broadcast(const Op& op, const Members& members, int64_t slot_bytes)
      : BufferProgram(op, members, slot_bytes), source_(members.member_of(op.args().root)) {
    for (int i = 0; i < args_.num_buffers; ++i) buffers_.Add(args_.counts[i]);
    for (int local = 0; local < num_local(); ++local) {
      if (op.requests[local]->rank == args_.root) root_local_ = local;
    }
    int64_t wanted = std::max(kPipelineBytes, DivideUp(buffers_.total() * element_, 4 * kAlign) * kAlign);
    chunk_ = ElementsIn(std::min(wanted, slot_bytes));
  }

  int64_t steps() const override { return DivideUp(buffers_.total(), chunk_); }

  void Fill(int64_t step, uint8_t* slot) override {
    if (alone() || root_local_ < 0) return;
    buffers_.ForRange(step * chunk_, (step + 1) * chunk_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
      memcpy(slot + position * element_, Input(root_local_, buffer, at), count * element_);
    });
  }

  Block Sent(int64_t step, int from, int) const override {
    Block block;
    if (from == source_) block.size = (std::min(buffers_.total(), (step + 1) * chunk_) - step * chunk_) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    buffers_.ForRange(step * chunk_, (step + 1) * chunk_, [&](int buffer, int64_t at, int64_t count, int64_t position) {
      const uint8_t* from = root_local_ >= 0 ? Input(root_local_, buffer, at) : slots[source_] + position * element_;
      for (int local = 0; local < num_local(); ++local) {
        uint8_t* to = Output(local, buffer, at);
        if (to != from) memcpy(to, from, count * element_);
      }
    });
  }

 private:
  const int source_;
  int root_local_ = -1;
  Runs buffers_;
  int64_t chunk_;
};

class ReduceScatter : public ScatteringProgram {
 public:
  ReduceScatter(const Op& op, const Members& members, int64_t slot_bytes)
      : ScatteringProgram(op, members, slot_bytes), area_(ElementsIn(slot_bytes / num_members())) {}

  int64_t steps() const override { return DivideUp(most(), area_); }

  void Fill(int64_t step, uint8_t* slot) override {
    if (alone()) return;
    for (int to = 0; to < num_members(); ++to) {
      ForPart(to, step * area_, area_, [&](int64_t at, int64_t count, int64_t position) {
        ReduceLocal(0, at, count, slot + (to * area_ + position) * element_);
      });
    }
  }

  Block Sent(int64_t step, int, int to) const override {
    Block block;
    block.offset = to * area_ * element_;
    block.size = std::max<int64_t>(0, std::min(area_, parts_[to].total() - step * area_)) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    ForOutput(step * area_, area_, [&](uint8_t* to, int64_t at, int64_t count, int64_t position) {
      if (alone()) {
        ReduceLocal(0, at, count, to);
      } else {
        ReduceSlots(slots, (members_.self * area_ + position) * element_, count, to);
      }
    });
  }

 private:
  const int64_t area_;  // elements of a slot that are for one member
};

class AllGather : public GatheringProgram {
 public:
  AllGather(const Op& op, const Members& members, int64_t slot_bytes)
      : GatheringProgram(op, members, slot_bytes), chunk_(ElementsIn(slot_bytes)) {}

  int64_t steps() const override { return DivideUp(most(), chunk_); }

  void Fill(int64_t step, uint8_t* slot) override {
    if (!alone()) CopyInputs(step * chunk_, chunk_, slot);
  }

  Block Sent(int64_t step, int from, int) const override {
    Block block;
    block.size = std::max<int64_t>(0, std::min(chunk_, streams_[from].total() - step * chunk_)) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    for (int member = 0; member < num_members(); ++member) {
      CopyToOutputs(member, step * chunk_, chunk_, slots[member]);
    }
  }

 private:
  const int64_t chunk_;
};

class AllToAll : public BufferProgram {
 public:
  AllToAll(const Op& op, const Members& members, int64_t slot_bytes)
      : BufferProgram(op, members, slot_bytes),
        area_(ElementsIn(slot_bytes / members.num_members())),
        outputs_(num_local()) {
    for (int to = 0; to < num_members(); ++to) {
      outgoing_.emplace_back();
      for (const Request* request : op.requests) {
        for (int rank : members.ranks_of[to]) outgoing_.back().Add(request->args.row_splits[rank] * args_.row_elements);
      }
    }
    for (const Request* request : op.requests) {
      input_begins_.emplace_back();
      int64_t begin = 0;
      for (int rank = 0; rank < members.size(); ++rank) {
        input_begins_.back().push_back(begin);
        begin += request->args.row_splits[rank] * args_.row_elements;
      }
    }
  }

  int64_t steps() const override { return steps_; }

  void Fill(int64_t step, uint8_t* slot) override {
    for (int to = 0; to < num_members(); ++to) {
      if (to == members_.self) continue;
      const std::vector<int>& ranks = members_.ranks_of[to];
      outgoing_[to].ForRange(
          step * area_, (step + 1) * area_, [&](int run, int64_t at, int64_t count, int64_t position) {
            int local = run / static_cast<int>(ranks.size());
            int64_t from = input_begins_[local][ranks[run % ranks.size()]] + at;
            memcpy(slot + (to * area_ + position) * element_, Input(local, 0, from), count * element_);
          });
    }
  }

  Block Sent(int64_t step, int from, int to) const override {
    Block block;
    block.offset = to * area_ * element_;
    if (from != to) block.size = std::max<int64_t>(0, std::min(area_, totals_[from][to] - step * area_)) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    const int self = members_.self;
    for (int from = 0; from < num_members(); ++from) {
      incoming_[from].ForRange(
          step * area_, (step + 1) * area_, [&](int run, int64_t at, int64_t count, int64_t position) {
            int source = members_.ranks_of[from][run / num_local()];
            int local = run % num_local();
            if (outputs_[local] == nullptr) return;
            const uint8_t* data = from == self ? Input(run / num_local(), 0,
                                                       input_begins_[run / num_local()][op_.requests[local]->rank] + at)
                                               : slots[from] + (self * area_ + position) * element_;
            memcpy(outputs_[local] + (output_begins_[local][source] + at) * element_, data, count * element_);
          });
    }
  }

  void SetRows(const std::vector<Announcement>& all) override {
    const int size = members_.size();
    std::vector<const int64_t*> splits(size);  // by source rank
    totals_.assign(num_members(), std::vector<int64_t>(num_members()));
    for (int from = 0; from < num_members(); ++from) {
      for (size_t i = 0; i < members_.ranks_of[from].size(); ++i) {
        splits[members_.ranks_of[from][i]] = all[from].rows.data() + i * size;
        for (int rank = 0; rank < size; ++rank) {
          totals_[from][members_.member_of(rank)] += all[from].rows[i * size + rank] * args_.row_elements;
        }
      }
    }
    for (int from = 0; from < num_members(); ++from) {
      incoming_.emplace_back();
      for (int source : members_.ranks_of[from]) {
        for (const Request* request : op_.requests)
          incoming_.back().Add(splits[source][request->rank] * args_.row_elements);
      }
    }
    for (const Request* request : op_.requests) {
      output_rows_.emplace_back();
      output_begins_.emplace_back();
      int64_t begin = 0;
      for (int source = 0; source < size; ++source) {
        output_rows_.back().push_back(splits[source][request->rank]);
        output_begins_.back().push_back(begin);
        begin += splits[source][request->rank] * args_.row_elements;
      }
    }
    for (const std::vector<int64_t>& row : totals_) {
      for (int64_t total : row) steps_ = std::max(steps_, DivideUp(total, area_));
    }
  }
  std::vector<int64_t> OutputRows(int local) const override { return output_rows_[local]; }
  void SetOutput(int local, void* output) override { outputs_[local] = static_cast<uint8_t*>(output); }

 private:
  const int64_t area_;
  int64_t steps_ = 0;
  std::vector<Runs> outgoing_;                       // by target member: (local rank, target rank)
  std::vector<Runs> incoming_;                       // by source member: (source rank, local rank)
  std::vector<std::vector<int64_t>> totals_;         // elements from a member to a member
  std::vector<std::vector<int64_t>> input_begins_;   // by local rank and target rank
  std::vector<std::vector<int64_t>> output_begins_;  // by local rank and source rank
  std::vector<std::vector<int64_t>> output_rows_;
  std::vector<uint8_t*> outputs_;
};

}  // namespace

std::unique_ptr<Program> MakeProgram(const Op& op, const Members& members, int64_t slot_bytes,
                                     const MachineLayout* machines) {
  const epl_collective& args = op.args();
  std::unique_ptr<Program> program;
  if (machines != nullptr) program = MakeHierarchicalProgram(op, members, slot_bytes, *machines);
  if (program != nullptr) return program;
  switch (args.kind) {
    case EPL_ALL_REDUCE:
      if (members.num_members() > 2 && BytesOf(args) > kSmallBytes) {
        program.reset(new SharedReduce(op, members, slot_bytes));
      } else {
        program.reset(new DirectReduce(op, members, slot_bytes));
      }
      break;
    case EPL_REDUCE:
      program.reset(new DirectReduce(op, members, slot_bytes));
      break;
    case EPL_BROADCAST:
      program.reset(new Broadcast(op, members, slot_bytes));
      break;
    case EPL_ALL_GATHER:
      program.reset(new AllGather(op, members, slot_bytes));
      break;
    case EPL_REDUCE_SCATTER:
      program.reset(new ReduceScatter(op, members, slot_bytes));
      break;
    case EPL_ALL_TO_ALL:
      program.reset(new AllToAll(op, members, slot_bytes));
      break;
  }
  return program;
}

}  // namespace epl
