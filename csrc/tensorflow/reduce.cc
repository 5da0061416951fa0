// EplReduce: the reduction over all ranks, on one of them.

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

REGISTER_OP("EplReduce")
    .Input("weight: double")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " EPL_DTYPES)
    .Attr("reduce_op: " EPL_REDUCE_OPS " = 'sum'")
    .Attr("root: int >= 0 = 0")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) { return SameShapes(context, 1); })
    .Doc(R"doc(
Reduces each tensor over all ranks of a communicator; rank `root` gets the result, the others get zeros.

weight: scalar; tensors of floating dtype are multiplied by it before the reduction. Must be 1 for integers.
tensors: the same shapes on every rank; moved in one transfer.
outputs: the reduced tensors on `root`, zeros elsewhere.
root: the rank that gets the result.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class ReduceOp : public CollectiveOp {
 public:
  explicit ReduceOp(tensorflow::OpKernelConstruction* construction) : CollectiveOp(construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    OP_REQUIRES_OK(construction, ParseReduceOp(name, &reduce_op_));
    OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
  }

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    if (root_ >= world) {
      return compat::InvalidArgument(Where(), ": root is ", root_, ", but there are only ", world, " ranks.");
    }
    call->kind = EPL_REDUCE;
    call->reduce_op = reduce_op_;
    call->root = root_;
    TF_RETURN_IF_ERROR(ReadWeight(context, context->input_dtype(1), call));
    TF_RETURN_IF_ERROR(ForwardBuffers(context, 1, call));
    if (rank() != root_) {
      // The buffers hold this rank's own input until it has been read; only then may they be cleared.
      const int64_t element_bytes = tensorflow::DataTypeSize(call->dtype);
      call->finish = [context, call, element_bytes]() {
        for (size_t i = 0; i < call->outputs.size(); ++i) {
          TF_RETURN_IF_ERROR(ZeroBytes(context, call->outputs[i], call->counts[i] * element_bytes));
        }
        return compat::Ok();
      };
    }
    return compat::Ok();
  }

 private:
  epl_reduce_op reduce_op_;
  int root_;
};

EPL_REGISTER_CPU_KERNEL("EplReduce", ReduceOp);
EPL_REGISTER_GPU_KERNEL("EplReduce", ReduceOp, .HostMemory("weight"));

}  // namespace epl
