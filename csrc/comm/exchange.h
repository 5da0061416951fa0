// The two things that a transport does for a communicator: let all processes enter a collective together or not at all
// (Gate), and show slots to each other (Exchange).

#ifndef EPL_COMM_EXCHANGE_H_
#define EPL_COMM_EXCHANGE_H_

#include <stdint.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/collective.h"
#include "comm/job.h"
#include "comm/program.h"

namespace epl {

// Either all member processes enter a collective or none does. An end of generation, a cancel or a timeout takes this
// process's entry back if the last process has not entered yet; afterwards it has no effect on this collective. So all
// processes agree on how many collectives were done.
class Gate {
 public:
  virtual ~Gate() = default;
  // Enters with an announcement; returns the announcements of all members once all have entered.
  virtual Status Pass(const std::string& announcement, StallWatch* watch, std::vector<std::string>* all) = 0;
  // Wakes a wait in Pass: the state of the job changed.
  virtual void Wake() {}
};

// Moves the slots of one step after the other. Steps are numbered through over the communicator's life.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const char* name() const = 0;
  virtual int64_t slot_bytes() const = 0;
  // This process's slot for the step, to be filled. May wait until an earlier step has gone out.
  virtual Status OwnSlot(uint64_t step, StallWatch* watch, uint8_t** slot) = 0;
  // The slot is filled. `index` is the number of the step within the program.
  virtual Status Post(uint64_t step, const Program& program, int64_t index) = 0;
  // Waits until the slots of all members can be read; fills `slots`, by member.
  virtual Status Wait(uint64_t step, const Program& program, int64_t index, StallWatch* watch,
                      const uint8_t** slots) = 0;
  // The program is over: nothing of it is in flight any more, and its steps' slots are free.
  virtual Status Finish(StallWatch*) { return Status(); }
  // On which machines the members are, if collectives are to be hierarchical; else null.
  virtual const MachineLayout* machines() const { return nullptr; }
  // Whether passing the gate means that every slot that was filled before can be seen.
  virtual bool FilledBeforeGate() const { return false; }
  // Wakes a wait: the state of the job changed.
  virtual void Wake() {}
};

// One process: nothing to agree on and nothing to move.
std::unique_ptr<Gate> MakeLocalGate();
std::unique_ptr<Exchange> MakeLocalExchange();
// The gate by way of the control plane, for processes of several machines.
std::unique_ptr<Gate> MakeControlGate(Job* job, const Members& members, const std::string& name);

}  // namespace epl

#endif  // EPL_COMM_EXCHANGE_H_
