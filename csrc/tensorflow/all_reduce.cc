// EplAllReduce: the reduction over all ranks, of a list of tensors in one transfer.

#include "tensorflow/collective_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/shape_functions.h"

namespace epl {

REGISTER_OP("EplAllReduce")
    .Input("weight: double")
    .Input("tensors: N * T")
    .Output("outputs: N * T")
    .Attr("N: int >= 1")
    .Attr("T: " EPL_DTYPES)
    .Attr("reduce_op: " EPL_REDUCE_OPS " = 'sum'")
    .EPL_COLLECTIVE_ATTRS()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) { return SameShapes(context, 1); })
    .Doc(R"doc(
Reduces each tensor over all ranks of a communicator; every rank gets the result.

weight: scalar; tensors of floating dtype are multiplied by it before the reduction. It may differ between ranks, which
  makes weighted means. Must be 1 for integers.
tensors: the same shapes on every rank; moved in one transfer.
outputs: the reduced tensors, in place where possible.
communicator: name of a communicator of this process.
rank: the rank that this op acts for.
key: names the op in messages; the same on every rank.
)doc");

class AllReduceOp : public CollectiveOp {
 public:
  explicit AllReduceOp(tensorflow::OpKernelConstruction* construction) : CollectiveOp(construction) {
    std::string name;
    OP_REQUIRES_OK(construction, construction->GetAttr("reduce_op", &name));
    OP_REQUIRES_OK(construction, ParseReduceOp(name, &reduce_op_));
  }

 protected:
  compat::Status Prepare(tensorflow::OpKernelContext* context, int world, CollectiveCall* call) override {
    call->kind = EPL_ALL_REDUCE;
    call->reduce_op = reduce_op_;
    TF_RETURN_IF_ERROR(ReadWeight(context, context->input_dtype(1), call));
    return ForwardBuffers(context, 1, call);
  }

 private:
  epl_reduce_op reduce_op_;
};

EPL_REGISTER_CPU_KERNEL("EplAllReduce", AllReduceOp);
EPL_REGISTER_GPU_KERNEL("EplAllReduce", AllReduceOp, .HostMemory("weight"));

}  // namespace epl
