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

// A collective is entered by all member processes or by none: an end of generation, a cancel or a timeout that comes
// before the last process has entered takes this process's entry back, one that comes later does not count any more.
// So every process agrees on how many collectives were done.
class Gate {
 public:
  virtual ~Gate() = default;
  // Enters with an announcement; gives those of all members once all have entered.
  virtual Status Pass(const std::string& announcement, Patience* patience, std::vector<std::string>* all) = 0;
  // The state of the job changed.
  virtual void Poke() {}
};

// Moves the slots of one step after the other. Steps are numbered through over the communicator's life.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual const char* name() const = 0;
  virtual int64_t slot_bytes() const = 0;
  // This process's slot for the step, to be filled. May wait until an earlier step has gone out.
  virtual Status OwnSlot(uint64_t step, Patience* patience, uint8_t** slot) = 0;
  // The slot is filled. `index` is the number of the step within the program.
  virtual Status Post(uint64_t step, const Program& program, int64_t index) = 0;
  // Waits until the slots of all members can be read; fills `slots`, by member.
  virtual Status Wait(uint64_t step, const Program& program, int64_t index, Patience* patience,
                      const uint8_t** slots) = 0;
  // The program is over: nothing of it is in flight any more, and its steps' slots are free.
  virtual Status Finish(Patience*) { return Status(); }
  // Whether passing the gate means that every slot that was filled before can be seen.
  virtual bool FilledBeforeGate() const { return false; }
  virtual void Poke() {}
};

// One process: nothing to agree on and nothing to move.
std::unique_ptr<Gate> MakeLocalGate();
std::unique_ptr<Exchange> MakeLocalExchange();
// The gate by way of the control plane, for processes of several machines.
std::unique_ptr<Gate> MakeControlGate(Job* job, const Members& members, const std::string& name);

}  // namespace epl

#endif  // EPL_COMM_EXCHANGE_H_
