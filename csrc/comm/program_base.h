// What the programs of all kinds are made of: runs of elements, the buffers of the local ranks, reductions over them.

#ifndef EPL_COMM_PROGRAM_BASE_H_
#define EPL_COMM_PROGRAM_BASE_H_

#include <string.h>

#include <algorithm>
#include <vector>

#include "comm/program.h"
#include "comm/reduce.h"

namespace epl {

constexpr int64_t kAlign = 64;
constexpr int64_t kSmallBytes = 64 << 10;     // up to here latency counts more than the work of every process
constexpr int64_t kPipelineBytes = 64 << 10;  // a shorter chunk costs more in waiting than its overlap gains

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

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

// Bytes of all buffers of a rank.
inline int64_t BytesOf(const epl_collective& args) {
  int64_t count = 0;
  for (int i = 0; i < args.num_buffers; ++i) count += args.counts[i];
  return count * SizeOf(args.dtype);
}

// What all programs know.
class BufferProgram : public Program {
 public:
  BufferProgram(const Op& op, const Members& members, int64_t slot_bytes)
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
  // The elements of a piece, of at most `most` bytes, where `bytes` are cut in chunks that are about equal, and each of
  // them in `pieces`: four chunks or more, unless they were too small.
  int64_t EvenPiece(int64_t bytes, int64_t pieces, int64_t most) const {
    most =
        std::min(most / kAlign * kAlign, std::max(kAlign, DivideUp(std::max(4 * kPipelineBytes, bytes / 4), pieces)));
    const int64_t chunks = std::max<int64_t>(1, DivideUp(bytes, most * pieces));
    return std::max<int64_t>(1, DivideUp(bytes, chunks * pieces * kAlign)) * kAlign / element_;
  }

  const Op op_;
  const Members& members_;
  const epl_collective args_;
  const int64_t element_;
  const int64_t slot_bytes_;
};

// Adds: reduction over the local ranks, with their scales.
class ReducingProgram : public BufferProgram {
 public:
  ReducingProgram(const Op& op, const Members& members, int64_t slot_bytes) : BufferProgram(op, members, slot_bytes) {
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
    ReduceSources(num_members(), count, to);
  }
  // Of the first `num` of `sources_`.
  void ReduceSources(int num, int64_t count, uint8_t* to) {
    if (count > 0) Reduce(args_.dtype, args_.reduce_op, to, sources_.data(), nullptr, num, count);
  }

  std::vector<const void*> sources_;

 private:
  std::vector<double> scales_;
};

// all_reduce and reduce, over fused buffers.
class FusedReduce : public ReducingProgram {
 public:
  FusedReduce(const Op& op, const Members& members, int64_t slot_bytes) : ReducingProgram(op, members, slot_bytes) {
    for (int i = 0; i < args_.num_buffers; ++i) buffers_.Add(args_.counts[i]);
    for (int local = 0; local < num_local(); ++local) {
      if (args_.kind == EPL_ALL_REDUCE || op.requests[local]->rank == args_.root) targets_.push_back(local);
    }
  }

 protected:
  Runs buffers_;
  std::vector<int> targets_;  // local ranks that get the result
};

// reduce_scatter: every rank gets its part of the rows.
class ScatteringProgram : public ReducingProgram {
 public:
  ScatteringProgram(const Op& op, const Members& members, int64_t slot_bytes)
      : ReducingProgram(op, members, slot_bytes), outputs_(num_local()) {
    const int64_t rows = args_.row_elements > 0 ? args_.counts[0] / args_.row_elements : 0;
    const int64_t size = members.size();
    for (int64_t rank = 0; rank <= size; ++rank) {
      begins_.push_back((rows / size * rank + std::min(rank, rows % size)) * args_.row_elements);
    }
    for (const std::vector<int>& ranks : members.ranks_of) {
      parts_.emplace_back();
      for (int rank : ranks) parts_.back().Add(begins_[rank + 1] - begins_[rank]);
      most_ = std::max(most_, parts_.back().total());
    }
  }

  std::vector<int64_t> OutputRows(int local) const override {
    if (args_.row_elements == 0) return {0};
    int rank = op_.requests[local]->rank;
    return {(begins_[rank + 1] - begins_[rank]) / args_.row_elements};
  }
  void SetOutput(int local, void* output) override { outputs_[local] = static_cast<uint8_t*>(output); }

 protected:
  int64_t most() const { return most_; }  // elements of the largest part of a member

  // Calls fn(first element of the inputs, count, offset in the range) for `size` elements of the part of a member.
  template <typename Fn>
  void ForPart(int member, int64_t begin, int64_t size, Fn fn) const {
    parts_[member].ForRange(begin, begin + size, [&](int index, int64_t at, int64_t count, int64_t position) {
      fn(begins_[members_.ranks_of[member][index]] + at, count, position);
    });
  }
  // Calls fn(output, first element of the inputs, count, offset in the range) for `size` elements of this process's
  // part, but for outputs that are not wanted.
  template <typename Fn>
  void ForOutput(int64_t begin, int64_t size, Fn fn) const {
    parts_[members_.self].ForRange(begin, begin + size, [&](int local, int64_t at, int64_t count, int64_t position) {
      if (outputs_[local] == nullptr) return;
      fn(outputs_[local] + at * element_, begins_[op_.requests[local]->rank] + at, count, position);
    });
  }

  std::vector<Runs> parts_;  // by member: the parts of its ranks

 private:
  std::vector<int64_t> begins_;  // by rank: first element of its part
  int64_t most_ = 0;
  std::vector<uint8_t*> outputs_;
};

// all_gather: every rank gets the rows of all.
class GatheringProgram : public BufferProgram {
 public:
  GatheringProgram(const Op& op, const Members& members, int64_t slot_bytes)
      : BufferProgram(op, members, slot_bytes), outputs_(num_local()) {
    for (int local = 0; local < num_local(); ++local) own_.Add(op.requests[local]->args.counts[0]);
  }

  void SetRows(const std::vector<Announcement>& all) override {
    rows_.resize(members_.size());
    streams_.resize(num_members());
    for (int member = 0; member < num_members(); ++member) {
      for (size_t i = 0; i < members_.ranks_of[member].size(); ++i) {
        rows_[members_.ranks_of[member][i]] = all[member].rows[i];
        streams_[member].Add(all[member].rows[i] * args_.row_elements);
      }
      most_ = std::max(most_, streams_[member].total());
    }
    int64_t begin = 0;
    for (int64_t rows : rows_) {
      begins_.push_back(begin);
      begin += rows * args_.row_elements;
    }
  }
  std::vector<int64_t> OutputRows(int) const override { return rows_; }
  void SetOutput(int local, void* output) override { outputs_[local] = static_cast<uint8_t*>(output); }

 protected:
  int64_t most() const { return most_; }  // elements of the member that gives most

  // `size` elements of what this process gives.
  void CopyInputs(int64_t begin, int64_t size, uint8_t* to) const {
    own_.ForRange(begin, begin + size, [&](int local, int64_t at, int64_t count, int64_t position) {
      memcpy(to + position * element_, Input(local, 0, at), count * element_);
    });
  }
  // `size` elements of what a member gives, from `data`; from the inputs if the member is this process.
  void CopyToOutputs(int member, int64_t begin, int64_t size, const uint8_t* data) const {
    streams_[member].ForRange(begin, begin + size, [&](int index, int64_t at, int64_t count, int64_t position) {
      const uint8_t* from = member == members_.self ? Input(index, 0, at) : data + position * element_;
      const int64_t place = begins_[members_.ranks_of[member][index]] + at;
      for (uint8_t* output : outputs_) {
        if (output != nullptr) memcpy(output + place * element_, from, count * element_);
      }
    });
  }

  std::vector<Runs> streams_;  // by member: what its ranks give

 private:
  int64_t most_ = 0;
  Runs own_;
  std::vector<int64_t> rows_;    // by rank
  std::vector<int64_t> begins_;  // by rank: its first element in the output
  std::vector<uint8_t*> outputs_;
};

}  // namespace epl

#endif  // EPL_COMM_PROGRAM_BASE_H_
