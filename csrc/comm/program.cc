// The programs of the six kinds.

#include "comm/program.h"

#include <string.h>

#include <algorithm>

#include "comm/reduce.h"

namespace epl {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kSmallBytes = 64 << 10;     // up to here latency counts more than the work of every process
constexpr int64_t kPipelineBytes = 64 << 10;  // a shorter chunk costs more in waiting than its overlap gains

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Several runs of elements seen as one: fused buffers, or the parts that go to one process.
class Runs {
 public:
  void Add(int64_t count) { ends_.push_back(total() + count); }
  int64_t total() const { return ends_.empty() ? 0 : ends_.back(); }
  int size() const { return static_cast<int>(ends_.size()); }
  int64_t begin(int run) const { return run == 0 ? 0 : ends_[run - 1]; }

  // Calls fn(run, offset in the run, count, offset in the range) for each part of [begin, end).
  template <typename Fn>
  void ForRange(int64_t begin, int64_t end, Fn fn) const {
    end = std::min(end, total());
    auto it = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (int64_t at = begin; at < end;) {
      int run = static_cast<int>(it - ends_.begin());
      int64_t stop = std::min(*it, end);
      if (stop > at) fn(run, at - this->begin(run), stop - at, at - begin);
      at = std::max(at, stop);
      ++it;
    }
  }

 private:
  std::vector<int64_t> ends_;
};

// What all programs know.
class Base : public Program {
 public:
  Base(const Op& op, const Members& members, int64_t slot_bytes)
      : op_(op), members_(members), args_(op.args()), element_(SizeOf(args_.dtype)), slot_bytes_(slot_bytes) {}

 protected:
  int num_members() const { return members_.num_members(); }
  int num_local() const { return static_cast<int>(op_.requests.size()); }
  bool alone() const { return num_members() == 1; }
  const uint8_t* Input(int local, int buffer, int64_t element) const {
    return static_cast<const uint8_t*>(op_.requests[local]->args.inputs[buffer]) + element * element_;
  }
  uint8_t* Output(int local, int buffer, int64_t element) const {
    return static_cast<uint8_t*>(op_.requests[local]->args.outputs[buffer]) + element * element_;
  }
  // How many elements fit in `bytes`, in whole cache lines.
  int64_t ElementsIn(int64_t bytes) const { return bytes / kAlign * kAlign / element_; }

  const Op op_;
  const Members& members_;
  const epl_collective args_;
  const int64_t element_;
  const int64_t slot_bytes_;
};

// Adds: reduction over the local ranks, with their scales.
class Reducing : public Base {
 public:
  Reducing(const Op& op, const Members& members, int64_t slot_bytes) : Base(op, members, slot_bytes) {
    bool scaled = false;
    for (const Request* request : op.requests) {
      scales_.push_back(request->args.scale);
      scaled = scaled || (IsFloating(args_.dtype) && request->args.scale != 1);
    }
    if (!scaled) scales_.clear();
    sources_.resize(std::max<size_t>(op.requests.size(), members.num_members()));
  }

 protected:
  void ReduceLocal(int buffer, int64_t element, int64_t count, uint8_t* to) {
    for (int local = 0; local < num_local(); ++local) sources_[local] = Input(local, buffer, element);
    Reduce(args_.dtype, args_.reduce_op, to, sources_.data(), scales_.empty() ? nullptr : scales_.data(), num_local(),
           count);
  }
  void ReduceSlots(const uint8_t* const* slots, int64_t offset, int64_t count, uint8_t* to) {
    for (int member = 0; member < num_members(); ++member) sources_[member] = slots[member] + offset;
    Reduce(args_.dtype, args_.reduce_op, to, sources_.data(), nullptr, num_members(), count);
  }

 private:
  std::vector<double> scales_;
  std::vector<const void*> sources_;
};

// all_reduce and reduce, over fused buffers.
class FusedReduce : public Reducing {
 public:
  FusedReduce(const Op& op, const Members& members, int64_t slot_bytes) : Reducing(op, members, slot_bytes) {
    for (int i = 0; i < args_.num_buffers; ++i) buffers_.Add(args_.counts[i]);
    for (int local = 0; local < num_local(); ++local) {
      if (args_.kind == EPL_ALL_REDUCE || op.requests[local]->rank == args_.root) targets_.push_back(local);
    }
  }

 protected:
  Runs buffers_;
  std::vector<int> targets_;  // local ranks that get the result
};

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

class Broadcast : public Base {
 public:
  Broadcast(const Op& op, const Members& members, int64_t slot_bytes)
      : Base(op, members, slot_bytes), source_(members.member_of(op.args().root)) {
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

class ReduceScatter : public Reducing {
 public:
  ReduceScatter(const Op& op, const Members& members, int64_t slot_bytes)
      : Reducing(op, members, slot_bytes), outputs_(num_local()) {
    const int64_t rows = args_.row_elements > 0 ? args_.counts[0] / args_.row_elements : 0;
    const int64_t size = members.size();
    for (int64_t rank = 0; rank <= size; ++rank) {
      begins_.push_back((rows / size * rank + std::min(rank, rows % size)) * args_.row_elements);
    }
    int64_t most = 0;
    for (const std::vector<int>& ranks : members.ranks_of) {
      parts_.emplace_back();
      for (int rank : ranks) parts_.back().Add(begins_[rank + 1] - begins_[rank]);
      most = std::max(most, parts_.back().total());
    }
    area_ = ElementsIn(slot_bytes / num_members());
    steps_ = DivideUp(most, area_);
  }

  int64_t steps() const override { return steps_; }

  void Fill(int64_t step, uint8_t* slot) override {
    if (alone()) return;
    for (int to = 0; to < num_members(); ++to) {
      ForPart(to, step, [&](int rank, int64_t at, int64_t count, int64_t position) {
        ReduceLocal(0, begins_[rank] + at, count, slot + (to * area_ + position) * element_);
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
    int self = members_.self;
    parts_[self].ForRange(step * area_, (step + 1) * area_,
                          [&](int local, int64_t at, int64_t count, int64_t position) {
                            if (outputs_[local] == nullptr) return;
                            uint8_t* to = outputs_[local] + at * element_;
                            if (alone()) {
                              ReduceLocal(0, begins_[op_.requests[local]->rank] + at, count, to);
                            } else {
                              ReduceSlots(slots, (self * area_ + position) * element_, count, to);
                            }
                          });
  }

  std::vector<int64_t> OutputRows(int local) const override {
    if (args_.row_elements == 0) return {0};
    int rank = op_.requests[local]->rank;
    return {(begins_[rank + 1] - begins_[rank]) / args_.row_elements};
  }
  void SetOutput(int local, void* output) override { outputs_[local] = static_cast<uint8_t*>(output); }

 private:
  template <typename Fn>
  void ForPart(int member, int64_t step, Fn fn) {
    parts_[member].ForRange(step * area_, (step + 1) * area_,
                            [&](int index, int64_t at, int64_t count, int64_t position) {
                              fn(members_.ranks_of[member][index], at, count, position);
                            });
  }

  std::vector<int64_t> begins_;  // by rank: first element of its part
  std::vector<Runs> parts_;      // by member: the parts of its ranks
  int64_t area_;                 // elements of a slot that are for one member
  int64_t steps_ = 0;
  std::vector<uint8_t*> outputs_;
};

class AllGather : public Base {
 public:
  AllGather(const Op& op, const Members& members, int64_t slot_bytes)
      : Base(op, members, slot_bytes), chunk_(ElementsIn(slot_bytes)), outputs_(num_local()) {
    own_rows_.resize(num_local());
    for (int local = 0; local < num_local(); ++local) own_.Add(op.requests[local]->args.counts[0]);
  }

  int64_t steps() const override { return steps_; }

  void Fill(int64_t step, uint8_t* slot) override {
    if (alone()) return;
    own_.ForRange(step * chunk_, (step + 1) * chunk_, [&](int local, int64_t at, int64_t count, int64_t position) {
      memcpy(slot + position * element_, Input(local, 0, at), count * element_);
    });
  }

  Block Sent(int64_t step, int from, int) const override {
    Block block;
    block.size = std::max<int64_t>(0, std::min(chunk_, streams_[from].total() - step * chunk_)) * element_;
    return block;
  }

  void Drain(int64_t step, const uint8_t* const* slots) override {
    for (int member = 0; member < num_members(); ++member) {
      streams_[member].ForRange(
          step * chunk_, (step + 1) * chunk_, [&](int index, int64_t at, int64_t count, int64_t position) {
            const uint8_t* from = member == members_.self ? Input(index, 0, at) : slots[member] + position * element_;
            int64_t place = begins_[members_.ranks_of[member][index]] + at;
            for (uint8_t* output : outputs_) {
              if (output != nullptr) memcpy(output + place * element_, from, count * element_);
            }
          });
    }
  }

  void SetRows(const std::vector<Announcement>& all) override {
    rows_.resize(members_.size());
    streams_.resize(num_members());
    for (int member = 0; member < num_members(); ++member) {
      for (size_t i = 0; i < members_.ranks_of[member].size(); ++i) {
        rows_[members_.ranks_of[member][i]] = all[member].rows[i];
        streams_[member].Add(all[member].rows[i] * args_.row_elements);
      }
      steps_ = std::max(steps_, DivideUp(streams_[member].total(), chunk_));
    }
    int64_t begin = 0;
    for (int64_t rows : rows_) {
      begins_.push_back(begin);
      begin += rows * args_.row_elements;
    }
  }
  std::vector<int64_t> OutputRows(int) const override { return rows_; }
  void SetOutput(int local, void* output) override { outputs_[local] = static_cast<uint8_t*>(output); }

 private:
  const int64_t chunk_;
  int64_t steps_ = 0;
  Runs own_;
  std::vector<int64_t> own_rows_;
  std::vector<int64_t> rows_;    // by rank
  std::vector<int64_t> begins_;  // by rank: its first element in the output
  std::vector<Runs> streams_;    // by member: what its ranks give
  std::vector<uint8_t*> outputs_;
};

class AllToAll : public Base {
 public:
  AllToAll(const Op& op, const Members& members, int64_t slot_bytes)
      : Base(op, members, slot_bytes), area_(ElementsIn(slot_bytes / members.num_members())), outputs_(num_local()) {
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

std::unique_ptr<Program> MakeProgram(const Op& op, const Members& members, int64_t slot_bytes) {
  const epl_collective& args = op.args();
  std::unique_ptr<Program> program;
  switch (args.kind) {
    case EPL_ALL_REDUCE: {
      int64_t bytes = 0;
      for (int i = 0; i < args.num_buffers; ++i) bytes += args.counts[i] * SizeOf(args.dtype);
      if (members.num_members() > 2 && bytes > kSmallBytes) {
        program.reset(new SharedReduce(op, members, slot_bytes));
      } else {
        program.reset(new DirectReduce(op, members, slot_bytes));
      }
      break;
    }
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
