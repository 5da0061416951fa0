// How each kind of collective is done between processes: a list of steps over slots, the same for every transport that
// can show one process's slot to another. The transports (exchange.h) move slots and know nothing of kinds.
//
//   step s      process 0           process 1
//   Fill        inputs -> slot 0    inputs -> slot 1
//   (exchange)  parts of the slots become visible to the processes that read them
//   Drain       slots -> outputs    slots -> outputs
//
// Fill of step s + 1 may run before Drain of step s, so that copying overlaps waiting, unless the step needs it.
// With one process there is nothing to exchange: Fill does nothing and Drain works from the inputs.

#ifndef EPL_COMM_PROGRAM_H_
#define EPL_COMM_PROGRAM_H_

#include <stdint.h>

#include <memory>
#include <vector>

#include "comm/collective.h"
#include "comm/machine_layout.h"

namespace epl {

// A part of a slot, in bytes.
struct Block {
  int64_t offset = 0;
  int64_t size = 0;
};

class Program {
 public:
  virtual ~Program() = default;

  // The number of steps; final once SetRows was called. Fill(0) may be called before that.
  virtual int64_t steps() const = 0;
  // Whether Fill(step) needs Drain(step - 1).
  virtual bool NeedsDrain(int64_t) const { return false; }
  virtual void Fill(int64_t step, uint8_t* slot) = 0;
  // Which part of the slot of member `from` is read by member `to`.
  virtual Block Sent(int64_t step, int from, int to) const = 0;
  // `slots` is by member.
  virtual void Drain(int64_t step, const uint8_t* const* slots) = 0;

  // For the kinds that allocate: all row counts, then per local rank what `allocate` is to be asked for, and its answer
  // (null: this rank's output is not wanted any more).
  virtual void SetRows(const std::vector<Announcement>&) {}
  virtual std::vector<int64_t> OutputRows(int) const { return {}; }
  virtual void SetOutput(int local, void* output) { static_cast<void>(local), static_cast<void>(output); }
};

// `slot_bytes` is the size of a slot, a multiple of 64 * the number of members. With `machines` the kinds that have a
// hierarchical algorithm use it.
std::unique_ptr<Program> MakeProgram(const Op& op, const Members& members, int64_t slot_bytes,
                                     const MachineLayout* machines);

}  // namespace epl

#endif  // EPL_COMM_PROGRAM_H_
