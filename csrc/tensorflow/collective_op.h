// The part that all collective kernels share: attributes, finding the communicator, submission, cancellation,
// completion.
//
// A kernel only says what is to be done (`Prepare`); it never waits. The life of one execution:
//
//   ComputeAsync --Prepare--> Pending --epl_submit--> core ... --Finished (any thread)--> outputs set, done()
//                                |                              ^
//                 step cancelled +--epl_cancel------------------+
//
// The matching of ranks, the transports and the reductions are the core's (csrc/comm).

#ifndef EPL_TENSORFLOW_COLLECTIVE_OP_H_
#define EPL_TENSORFLOW_COLLECTIVE_OP_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/epl_comm.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/tf_compat.h"

namespace epl {

// What one execution of a kernel asks of the core. Vectors and strings stay where they are until it is finished.
struct CollectiveCall {
  epl_kind kind = EPL_ALL_REDUCE;
  tensorflow::DataType dtype = tensorflow::DT_FLOAT;
  epl_reduce_op reduce_op = EPL_SUM;
  int root = 0;
  double scale = 1;
  int64_t row_elements = 1;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<int64_t> counts;
  std::vector<int64_t> row_splits;

  // Kinds whose output size is known only when all ranks have been heard: allocates the output for these rows.
  std::function<compat::Status(const int64_t* rows, int num_rows, void** output)> allocate;
  // Runs after the collective has succeeded, before the op is done.
  std::function<compat::Status()> finish;
};

class CollectiveOp : public tensorflow::AsyncOpKernel {
 public:
  explicit CollectiveOp(tensorflow::OpKernelConstruction* construction);

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 protected:
  // Checks the inputs, allocates the outputs whose shapes are known, and fills `call`. `world` is the size of the
  // communicator. Must not block.
  virtual compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) = 0;

  int rank() const { return rank_; }
  // `key` "grads" of communicator "dp", rank 3: how errors name this op.
  std::string Where() const;

 private:
  compat::Status FindCommunicator(tensorflow::OpKernelContext* context, epl_communicator** communicator) const;

  std::string communicator_name_;
  std::string key_;
  int rank_;
  int declared_world_ = 0;  // the attribute `world`, for the ops that have it
  bool on_gpu_;
};

// Fills the buffers of `call` for an op whose inputs [first_input, first_input + N) become its N outputs, in place
// where TensorFlow allows it.
compat::Status ForwardBuffers(tensorflow::OpKernelContext* context, int first_input, CollectiveCall* call);

// Reads the host scalar `weight` (input 0) into call->scale; integers are refused unless it is 1.
compat::Status ReadWeight(tensorflow::OpKernelContext* context, tensorflow::DataType dtype, CollectiveCall* call);

// Fills the single buffer of `call` from input `input`, and its row size from the dimensions after the first. A scalar
// is one row if `scalar_is_row`, else refused.
compat::Status ReadRows(tensorflow::OpKernelContext* context, int input, const std::string& where, bool scalar_is_row,
                        CollectiveCall* call);

// Allocates output 0: `rows` rows of the row shape of input `input`.
compat::Status AllocateRows(tensorflow::OpKernelContext* context, int input, int64_t rows, void** output);

// Writes the row counts to the int64 vector output `index`, which lies in host memory.
compat::Status WriteRows(tensorflow::OpKernelContext* context, int index, const int64_t* rows, int num_rows);

// The names of attribute `reduce_op`.
compat::Status ParseReduceOp(const std::string& name, epl_reduce_op* reduce_op);

// Sets bytes of an output to zero, on the CPU or in the order of the op's stream.
compat::Status ZeroBytes(tensorflow::OpKernelContext* context, void* buffer, int64_t bytes);

}  // namespace epl

// One kernel serves all dtypes: the core dispatches on them. GPU kernels need no CUDA headers (the stream is an opaque
// pointer), so every build has them; EPL_WITHOUT_GPU_KERNELS leaves them out. __VA_ARGS__: .HostMemory("...") of the
// GPU registration.
#define EPL_REGISTER_CPU_KERNEL(NAME, CLASS) REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_CPU), CLASS)
#ifndef EPL_WITHOUT_GPU_KERNELS
#define EPL_REGISTER_GPU_KERNEL(NAME, CLASS, ...) \
  REGISTER_KERNEL_BUILDER(Name(NAME).Device(tensorflow::DEVICE_GPU) __VA_ARGS__, CLASS)
#else
#define EPL_REGISTER_GPU_KERNEL(NAME, CLASS, ...)
#endif

// The dtypes and the attributes of every collective op.
#define EPL_DTYPES "{uint8, int8, int32, int64, half, float, double, bfloat16}"
#define EPL_REDUCE_OPS "{'sum', 'prod', 'min', 'max'}"
#define EPL_COLLECTIVE_ATTRS() Attr("communicator: string").Attr("rank: int >= 0").Attr("key: string").SetIsStateful()

#endif  // EPL_TENSORFLOW_COLLECTIVE_OP_H_
